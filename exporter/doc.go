// SPDX-License-Identifier: Apache-2.0

// Package exporter ships what profiled processes leave in a spool: it converts each dump once and offers it to every
// sink, until each has accepted it or given it up, and only then takes the file out of the spool.
//
// The spool is the queue. What waits for a slow sink waits as a file, not as a profile in memory, and what is left when
// the program ends is there for the next reader. So delivery is at least once, and a repeat carries the same profile id.
package exporter
