// SPDX-License-Identifier: Apache-2.0

// Package otlp sends profiles to an OpenTelemetry receiver, over HTTP or gRPC, configured by the standard variables.
//
// It does not retry: an error says whether and when another try makes sense, and the pipeline, which also knows the age
// of the dump and what else waits, decides.
package otlp
