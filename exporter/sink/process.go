// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sort"
	"unicode/utf8"
)

// MaxProcessJSON caps process.json, in bytes. The largest the shim writes is bounded by the environment values it copies, which
// Linux bounds to 128 KiB each (MAX_ARG_STRLEN).
const MaxProcessJSON = 4 << 20

const maxQuoted = 80

// ProcessJSON is what process.json says about a profiled process (docs/spool.md), as it stands there. A field whose key was
// missing has its zero value. Marshalling it gives a process.json.
type ProcessJSON struct {
	Schema             int               `json:"schema"`
	Host               string            `json:"host"`
	PID                int               `json:"pid"`
	StartTicks         uint64            `json:"start_ticks"` // field 22 of /proc/<pid>/stat, clock ticks since boot
	BootID             string            `json:"boot_id,omitempty"`
	PIDNamespace       string            `json:"pid_namespace,omitempty"` // what /proc/self/ns/pid points to: "pid:[4026531836]"
	StartTimeUnixNano  int64             `json:"start_time_unix_nano,omitempty"`
	ParentPID          int               `json:"parent_pid,omitempty"`
	Executable         string            `json:"executable,omitempty"`
	PythonVersion      string            `json:"python_version,omitempty"`
	ServiceName        string            `json:"service_name,omitempty"`        // OTEL_SERVICE_NAME as it was
	ResourceAttributes string            `json:"resource_attributes,omitempty"` // OTEL_RESOURCE_ATTRIBUTES, not decoded
	Variables          map[string]string `json:"variables,omitempty"`
	ContainerID        string            `json:"container_id,omitempty"`
	Forked             bool              `json:"forked"`
	ShimVersion        string            `json:"shim_version,omitempty"`
	JemallocVersion    string            `json:"jemalloc_version,omitempty"`
	SampleBytes        int64             `json:"sample_bytes,omitempty"`
	ExitDump           *bool             `json:"exit_dump,omitempty"` // false: it ends without a last dump
}

// ParseProcessJSON reads the text of a process.json. A key with a value of the wrong type is left out and named in the
// error; what could be read is returned beside the error, so that a caller may go on with it. Unknown keys are skipped.
func ParseProcessJSON(text []byte) (ProcessJSON, error) {
	var id ProcessJSON
	if len(text) > MaxProcessJSON {
		return id, fmt.Errorf("%d bytes, more than the %d allowed", len(text), MaxProcessJSON)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal(text, &keys); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return id, fmt.Errorf("byte %d: %w", syntax.Offset, err)
		}
		return id, fmt.Errorf("want a JSON object: %w", err)
	}

	fields := map[string]any{
		"schema": &id.Schema, "host": &id.Host, "pid": &id.PID, "start_ticks": &id.StartTicks, "boot_id": &id.BootID, "pid_namespace": &id.PIDNamespace,
		"start_time_unix_nano": &id.StartTimeUnixNano, "parent_pid": &id.ParentPID, "executable": &id.Executable,
		"python_version": &id.PythonVersion, "service_name": &id.ServiceName,
		"resource_attributes": &id.ResourceAttributes, "variables": &id.Variables, "container_id": &id.ContainerID,
		"forked": &id.Forked, "shim_version": &id.ShimVersion, "jemalloc_version": &id.JemallocVersion,
		"sample_bytes": &id.SampleBytes, "exit_dump": &id.ExitDump,
	}
	var errs []error
	for key, field := range fields {
		raw, ok := keys[key]
		if !ok {
			continue
		}
		if err := json.Unmarshal(raw, field); err != nil {
			errs = append(errs, fmt.Errorf("key %q: want %s, got %s", key, wantOf(field), quote(raw)))
			reset(field)
		}
	}
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return id, errors.Join(errs...)
}

func wantOf(field any) string {
	switch field.(type) {
	case *string:
		return "a string"
	case *bool, **bool:
		return "true or false"
	case *uint64:
		return "a whole number, not negative"
	case *map[string]string:
		return "an object of strings"
	default:
		return "a whole number"
	}
}

// reset empties a field that Unmarshal may have filled in part.
func reset(field any) {
	switch f := field.(type) {
	case *string:
		*f = ""
	case *bool:
		*f = false
	case **bool:
		*f = nil
	case *int:
		*f = 0
	case *int64:
		*f = 0
	case *uint64:
		*f = 0
	case *map[string]string:
		*f = nil
	}
}

func quote(raw []byte) string {
	raw = bytes.TrimSpace(raw)
	if len(raw) <= maxQuoted {
		return string(raw)
	}
	cut := raw[:maxQuoted]
	for len(cut) > 0 && !utf8.Valid(cut) {
		cut = cut[:len(cut)-1]
	}
	return string(cut) + "…"
}
