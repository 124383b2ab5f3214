// SPDX-License-Identifier: Apache-2.0

// Package otlp turns a pprof profile into OpenTelemetry's profiles signal and into its wire forms.
//
// It is the only package of heapwire that builds or takes apart pprofile data, because that API is alpha and changes with
// almost every release: the rest of the tree sees *profile.Profile on one side and bytes on the other.
package otlp
