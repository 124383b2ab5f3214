// SPDX-License-Identifier: Apache-2.0

// Package distribution holds no code: manifest.yaml says what bin/otelcol-heapwire is made of (`make collector`), config has
// configurations for it, and its tests run that program.
package distribution
