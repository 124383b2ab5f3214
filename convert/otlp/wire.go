// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"fmt"

	"go.opentelemetry.io/collector/pdata/pprofile/pprofileotlp"
)

// Names of the signal on the wire (https://opentelemetry.io/docs/specs/otlp/). The path has no variable in the
// Collector's receiver, whose README is wrong about it: /v1/profiles gives 404.
const (
	HTTPPath   = "v1development/profiles"
	GRPCMethod = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"

	// VersionHeader, with the value Version, guards against a receiver of another revision of the signal: a difference
	// is refused before decoding, while without it proto 1.9 misreads 1.10 without an error.
	VersionHeader = pprofileotlp.DevelopmentVersionHeader
	Version       = pprofileotlp.DevelopmentVersion
)

// Response is a receiver's answer to an accepted request.
type Response struct {
	// Rejected is the number of profiles it did not take, for the reason in Message. Without any, Message is a warning.
	Rejected int64
	Message  string
}

// ParseResponse reads an ExportProfilesServiceResponse from protobuf or OTLP/JSON.
func ParseResponse(body []byte, json bool) (Response, error) {
	r := pprofileotlp.NewExportResponse()
	unmarshal := r.UnmarshalProto
	if json {
		unmarshal = r.UnmarshalJSON
	}
	if err := unmarshal(body); err != nil {
		return Response{}, fmt.Errorf("decoding the answer to an OTLP export: %w", err)
	}
	return Response{Rejected: r.PartialSuccess().RejectedProfiles(), Message: r.PartialSuccess().ErrorMessage()}, nil
}
