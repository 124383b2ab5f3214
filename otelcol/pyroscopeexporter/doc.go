// SPDX-License-Identifier: Apache-2.0

//go:generate mdatagen metadata.yaml

// Package pyroscopeexporter pushes profiles of any origin to a Pyroscope server through its push API. The stock OTLP
// exporters do not do: Pyroscope up to 2.2.1 reads no attribute references, and names the series after the period type.
//
// Shape, limits and splitting are those of exporter/pyroscope; queue, retries and timeout are the Collector's.
package pyroscopeexporter
