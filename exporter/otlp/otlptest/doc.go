// SPDX-License-Identifier: Apache-2.0

// Package otlptest runs the Collector's own OTLP receiver on loopback and reads back what arrived, so that tests and the
// demo have a receiver that nobody here wrote.
package otlptest
