// SPDX-License-Identifier: Apache-2.0

// Package sinks makes the sinks that the environment names, for every home of the exporter alike.
package sinks
