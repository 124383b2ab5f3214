// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/plog/plogotlp"
	"go.opentelemetry.io/collector/pdata/pmetric/pmetricotlp"

	convert "github.com/heapwire/heapwire/convert/otlp"
)

// answer is a receiver's word on an accepted request. With nothing rejected, the message is a warning.
type answer struct {
	rejected int64
	message  string
}

// wire is how a signal travels (https://opentelemetry.io/docs/specs/otlp/).
type wire struct {
	path, method string
	versioned    bool // the signal is not stable: the revision goes with each request
	parse        func(body []byte, json bool) (answer, error)
}

var wires = map[Signal]wire{
	Profiles: {path: convert.HTTPPath, method: convert.GRPCMethod, versioned: true, parse: func(body []byte, json bool) (answer, error) {
		r, err := convert.ParseResponse(body, json)
		return answer{r.Rejected, r.Message}, err
	}},
	Logs: {path: "v1/logs", method: "/opentelemetry.proto.collector.logs.v1.LogsService/Export", parse: func(body []byte, json bool) (answer, error) {
		r := plogotlp.NewExportResponse()
		err := unmarshal(r, body, json)
		return answer{r.PartialSuccess().RejectedLogRecords(), r.PartialSuccess().ErrorMessage()}, err
	}},
	Metrics: {path: "v1/metrics", method: "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export", parse: func(body []byte, json bool) (answer, error) {
		r := pmetricotlp.NewExportResponse()
		err := unmarshal(r, body, json)
		return answer{r.PartialSuccess().RejectedDataPoints(), r.PartialSuccess().ErrorMessage()}, err
	}},
}

type message interface {
	UnmarshalProto([]byte) error
	UnmarshalJSON([]byte) error
}

func unmarshal(m message, body []byte, json bool) error {
	decode := m.UnmarshalProto
	if json {
		decode = m.UnmarshalJSON
	}
	if err := decode(body); err != nil {
		return fmt.Errorf("decoding the answer to an OTLP export: %w", err)
	}
	return nil
}
