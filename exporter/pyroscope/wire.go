// SPDX-License-Identifier: Apache-2.0

package pyroscope

import "encoding/binary"

// The message of push.v1.PusherService/Push is three nested fields (push/v1/push.proto and types/v1/types.proto of
// github.com/grafana/pyroscope/api), and writing them by hand spares 127 packages:
//
//	PushRequest{series=1: RawProfileSeries{labels=1: LabelPair{name=1, value=2}, samples=2: RawSample{rawProfile=1}}}

// pushRequest encodes one series with one gzipped pprof profile.
func pushRequest(labels []Label, profile []byte) []byte {
	var series []byte
	for _, l := range labels {
		series = field(series, 1, field(field(nil, 1, []byte(l.Name)), 2, []byte(l.Value)))
	}
	series = field(series, 2, field(nil, 1, profile))
	return field(nil, 1, series)
}

// field appends a length-delimited field with a number below 16.
func field(b []byte, number byte, value []byte) []byte {
	b = append(b, number<<3|2)
	b = binary.AppendUvarint(b, uint64(len(value)))
	return append(b, value...)
}
