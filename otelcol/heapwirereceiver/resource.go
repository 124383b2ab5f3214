// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"strconv"
	"strings"

	"go.opentelemetry.io/collector/pdata/pcommon"

	"github.com/heapwire/heapwire/exporter/sink"
)

// variablePrefix begins a field that is a launcher's variable, such as "variables.SLURM_JOB_ID".
const variablePrefix = "variables."

// fields are what process.json says (docs/spool.md), as texts.
var fields = map[string]func(sink.Identity) string{
	"host":             func(id sink.Identity) string { return id.Host },
	"pid":              func(id sink.Identity) string { return number(id.PID) },
	"parent_pid":       func(id sink.Identity) string { return number(id.ParentPID) },
	"boot_id":          func(id sink.Identity) string { return id.BootID },
	"executable":       func(id sink.Identity) string { return id.Executable },
	"python_version":   func(id sink.Identity) string { return id.PythonVersion },
	"service_name":     func(id sink.Identity) string { return id.ServiceName },
	"container_id":     func(id sink.Identity) string { return id.ContainerID },
	"shim_version":     func(id sink.Identity) string { return id.ShimVersion },
	"jemalloc_version": func(id sink.Identity) string { return id.JemallocVersion },
}

func number(n int) string {
	if n == 0 {
		return ""
	}
	return strconv.Itoa(n)
}

// resource adds and removes the attributes that the configuration names.
func (r *heapwireReceiver) resource(attrs pcommon.Map, id sink.Identity) {
	for attribute, field := range r.cfg.Resource {
		value := ""
		if name, ok := strings.CutPrefix(field, variablePrefix); ok {
			value = id.Variables[name]
		} else if get := fields[field]; get != nil {
			value = get(id)
		}
		switch {
		case field == "":
			attrs.Remove(attribute)
		case value != "":
			attrs.PutStr(attribute, value)
		}
	}
}
