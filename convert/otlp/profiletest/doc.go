// SPDX-License-Identifier: Apache-2.0

// Package profiletest makes heap profiles of known content for the tests of everything that carries profiles on.
package profiletest
