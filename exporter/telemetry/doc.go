// SPDX-License-Identifier: Apache-2.0

// Package telemetry makes the exporter a thing that can be watched itself: its metrics by OTLP, its own Go profile to
// Pyroscope. Both go only where the standard variables say, and neither is ever waited for.
package telemetry
