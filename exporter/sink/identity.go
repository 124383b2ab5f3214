// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"
)

// Identity says which process a profile is from.
type Identity struct {
	Host       string
	PID        int
	StartTicks uint64 // field 22 of /proc/<pid>/stat: with PID and BootID it names one process for good
	BootID     string
	StartTime  time.Time
	ParentPID  int
	Forked     bool
	NoExitDump bool // it ends without a last dump, however it ends

	Executable    string // path
	PythonVersion string // "3.11.7", "" without an interpreter

	// ServiceName is never empty: OTEL_SERVICE_NAME, else service.name of OTEL_RESOURCE_ATTRIBUTES, else
	// "unknown_service:" and the executable's name.
	ServiceName string

	// Resource is OTEL_RESOURCE_ATTRIBUTES decoded, without service.name; nil when the variable could not be decoded.
	Resource map[string]string

	// Rank, LocalRank and WorldSize are the process's place in its job as its launcher wrote it, "" when it wrote none.
	Rank, LocalRank, WorldSize string

	// Variables are all launcher variables of process.json, such as SLURM_JOB_ID.
	Variables map[string]string

	ContainerID                  string
	ShimVersion, JemallocVersion string
}

// Identity is who the process is, with what its launcher and the OpenTelemetry variables say decoded.
func (p ProcessJSON) Identity() Identity {
	id := Identity{
		Host: p.Host, PID: p.PID, StartTicks: p.StartTicks, BootID: p.BootID, ParentPID: p.ParentPID, Forked: p.Forked,
		Executable: p.Executable, PythonVersion: p.PythonVersion, Variables: p.Variables, ContainerID: p.ContainerID,
		ShimVersion: p.ShimVersion, JemallocVersion: p.JemallocVersion, NoExitDump: p.ExitDump != nil && !*p.ExitDump,
	}
	if p.StartTimeUnixNano != 0 {
		id.StartTime = time.Unix(0, p.StartTimeUnixNano).UTC()
	}
	// A resource variable that cannot be decoded is dropped whole, as the specification wants; the profile is not.
	id.Resource, _ = ParseResourceAttributes(p.ResourceAttributes)
	id.ServiceName = serviceName(p.ServiceName, id.Resource["service.name"], p.Executable)
	delete(id.Resource, "service.name")
	id.Rank, id.LocalRank, id.WorldSize = ranks(p.Variables)
	return id
}

func serviceName(variable, attribute, executable string) string {
	switch {
	case variable != "":
		return variable
	case attribute != "":
		return attribute
	case executable != "":
		// https://opentelemetry.io/docs/specs/semconv/resource/#service names the fallback.
		return "unknown_service:" + filepath.Base(executable)
	}
	return "unknown_service"
}

// ParseResourceAttributes decodes OTEL_RESOURCE_ATTRIBUTES: "k1=v1,k2=v2", keys and values percent-encoded. Any error
// voids the whole variable (https://opentelemetry.io/docs/specs/otel/resource/sdk/).
func ParseResourceAttributes(s string) (map[string]string, error) {
	attrs := map[string]string{}
	for member := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(member) == "" {
			continue
		}
		k, v, ok := strings.Cut(member, "=")
		if !ok {
			return nil, fmt.Errorf("resource attributes: %q is no key=value", member)
		}
		key, err := url.PathUnescape(strings.TrimSpace(k))
		if err != nil {
			return nil, fmt.Errorf("resource attributes: key %q: %w", k, err)
		}
		if key == "" {
			return nil, fmt.Errorf("resource attributes: %q has no key", member)
		}
		value, err := url.PathUnescape(strings.TrimSpace(v))
		if err != nil {
			return nil, fmt.Errorf("resource attributes: value of %q: %w", key, err)
		}
		attrs[key] = value
	}
	return attrs, nil
}

// launchers name a process's place in its job, most specific first: torchrun may run under srun or mpirun, whose own
// variables then count launchers, not workers. One launcher's variables are never mixed with another's.
var launchers = []struct{ rank, local, world string }{
	{"RANK", "LOCAL_RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
	{"PMI_RANK", "", "PMI_SIZE"},
}

func ranks(vars map[string]string) (rank, local, world string) {
	for _, l := range launchers {
		if vars[l.rank] != "" {
			return vars[l.rank], vars[l.local], vars[l.world]
		}
	}
	return "", "", ""
}
