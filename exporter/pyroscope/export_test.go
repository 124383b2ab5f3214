// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/exporter/sink"
)

// Shape makes what the server gets, before splitting.
func Shape(it *sink.Item) (*profile.Profile, error) {
	return shape(it, func(string) bool { return false }, difference{})
}

// PushRequest encodes a request.
func PushRequest(labels [][2]string, profile []byte) []byte {
	var ls []Label
	for _, l := range labels {
		ls = append(ls, Label{l[0], l[1]})
	}
	return pushRequest(ls, profile)
}

// Split cuts a profile and gives the number of parts.
func Split(p *profile.Profile) (int, error) {
	parts, err := split(p, DefaultMaxBytes, DefaultMaxSamples)
	return len(parts), err
}
