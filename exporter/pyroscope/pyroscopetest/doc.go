// SPDX-License-Identifier: Apache-2.0

// Package pyroscopetest is a Pyroscope server as far as a client can tell: the handler is generated from the published
// API, the refusals are those that a real server of version 2.2 gave. The real one is AGPL and no module one can require.
package pyroscopetest
