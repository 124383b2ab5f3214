// SPDX-License-Identifier: Apache-2.0

// Package file writes profiles to a folder: what heapwire does when no back end is configured, and what a person opens
// first. A dump becomes a gzipped pprof profile; the newest one of a process also becomes a flame graph that opens in any
// browser without a server, and a table of the lines that hold most.
package file
