// SPDX-License-Identifier: Apache-2.0

// Package spool reads the folder in which profiled processes leave their dumps (docs/spool.md): it finds the folders,
// claims each for one reader, hands out complete dumps in order, and acknowledges them once they were delivered.
//
// A spool is written by other processes and may lie in a shared place such as /tmp. Nothing in it is trusted: names are
// matched against the contract, links are never followed, only regular files are opened, sizes are capped, and what does
// not fit is reported and left alone without holding up the rest.
package spool
