// SPDX-License-Identifier: Apache-2.0

// Package pyroscope pushes profiles to a Pyroscope server through its push API.
//
// The API is preferred to OTLP here because Pyroscope names a series after the OTLP period type, so that nothing but the
// push API can give memory:inuse_space:bytes:space:bytes, the id that Grafana draws as a gauge; and because Pyroscope up to
// 2.2.1 does not read the attribute references that OpenTelemetry senders write.
//
// The server sums all profiles of a series over time. Live memory (inuse_*) is a gauge, so a query has to cover one
// interval, or divide by the number of snapshots. Counters since the process started (alloc_*) would be summed again and
// again: they are left out, unless the profile's view is "alloc", which holds what one window allocated.
package pyroscope
