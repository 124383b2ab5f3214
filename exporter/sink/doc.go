// SPDX-License-Identifier: Apache-2.0

// Package sink holds what flows from the pipeline to a back end: one converted dump with the identity of the process it
// is from, the interface every back end implements, and the errors by which a back end says whether to try again.
//
// It is a package of its own so that the back ends and the pipeline that drives them depend on it, not on each other.
package sink
