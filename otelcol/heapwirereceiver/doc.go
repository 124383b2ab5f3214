// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package heapwirereceiver is the home of the exporter in a Collector: it reads the spools of profiled processes, and the
// folders into which others write snapshots of device memory, and hands on profiles, log records and metrics.
//
// It holds no parsing, no retry and no queue of its own: each spool has a pipeline of package exporter, with the next
// consumers as its sinks, and what they do not take for now stays in the spool.
package heapwirereceiver
