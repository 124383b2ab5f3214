// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"maps"
	"path/filepath"
	"strconv"
	"time"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
)

// Attribute keys of our own, until a convention for ranks exists.
const (
	AttrRank      = "heapwire.rank"
	AttrLocalRank = "heapwire.local_rank"
	AttrWorldSize = "heapwire.world_size"
)

// Attributes gives the identity as resource attributes of OpenTelemetry's semantic conventions: string or int64. What
// OTEL_RESOURCE_ATTRIBUTES says stands, except for the process itself: a child inherits its parent's variable.
func (id Identity) Attributes() map[string]any {
	attrs := make(map[string]any, len(id.Resource)+16)
	for k, v := range id.Resource {
		attrs[k] = v
	}
	own := map[string]any{}
	text := func(into map[string]any, k, v string) {
		if v != "" {
			into[k] = v
		}
	}
	number := func(k string, v int) {
		if v != 0 {
			own[k] = int64(v)
		}
	}
	text(own, string(semconv.ServiceNameKey), id.ServiceName)
	number(string(semconv.ProcessPIDKey), id.PID)
	number(string(semconv.ProcessParentPIDKey), id.ParentPID)
	if !id.StartTime.IsZero() {
		own[string(semconv.ProcessCreationTimeKey)] = id.StartTime.UTC().Format(time.RFC3339Nano)
	}
	if id.Executable != "" {
		own[string(semconv.ProcessExecutablePathKey)] = id.Executable
		own[string(semconv.ProcessExecutableNameKey)] = filepath.Base(id.Executable)
	}
	if id.PythonVersion != "" {
		own[string(semconv.ProcessRuntimeNameKey)] = "cpython"
		own[string(semconv.ProcessRuntimeVersionKey)] = id.PythonVersion
	}
	for k, v := range map[string]string{AttrRank: id.Rank, AttrLocalRank: id.LocalRank, AttrWorldSize: id.WorldSize} {
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			own[k] = n
		} else {
			text(own, k, v)
		}
	}

	found := map[string]any{}
	text(found, string(semconv.HostNameKey), id.Host)
	text(found, string(semconv.ContainerIDKey), id.ContainerID)
	for k, v := range found {
		if _, ok := attrs[k]; !ok {
			attrs[k] = v
		}
	}
	maps.Copy(attrs, own)
	return attrs
}
