// SPDX-License-Identifier: Apache-2.0

package pyroscope

import (
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	maxLabels      = 20 // ours; the server takes 30 names, and the labels of samples count too
	maxLabelName   = 1024
	maxLabelValue  = 2048 // both: pkg/validation of the server
	metricName     = "memory"
	labelMetric    = "__name__"
	labelService   = "service_name"
	reservedPrefix = "__"
)

// Label is one of a series.
type Label struct{ Name, Value string }

// Series is where the server files a profile.
type Series struct {
	// Labels have no name twice, and service_name among them; __name__ is the first half of a profile type's id.
	Labels []Label
	// Tenant is the X-Scope-OrgID, "" for that of the Config.
	Tenant string
}

// renamed are resource attributes that Grafana and Pyroscope know under another label name.
var renamed = []struct{ attr, label string }{
	{"service.namespace", "service_namespace"},
	{"service.version", "service_version"},
	{"deployment.environment.name", "deployment"},
	{"deployment.environment", "deployment"},
	{"k8s.namespace.name", "namespace"},
	{"k8s.pod.name", "pod"},
	{"k8s.container.name", "container"},
	{"k8s.node.name", "node"},
	{"k8s.job.name", "job"},
	{"vcs.ref.head.revision", "service_git_ref"},
	{"vcs.repository.url.full", "service_repository"},
}

// ResourceLabels gives the resource attributes that become labels, with the label's name: those that Grafana and Pyroscope
// know under a name of their own, the host, and a process's place in its job.
func ResourceLabels() map[string]string {
	labels := map[string]string{
		"host.name": "hostname", sink.AttrRank: "rank", sink.AttrLocalRank: "local_rank", sink.AttrWorldSize: "world_size",
	}
	for _, r := range renamed {
		labels[r.attr] = r.label
	}
	return labels
}

// unbounded are attributes with a new value for every process or pod: as labels they would grow the index without end.
var unbounded = []string{"service.instance.id", "container.id", "host.id", "k8s.pod.uid", "k8s.replicaset.uid", "telemetry."}

// NewSeries begins a series with the first half of its profile type's id, such as "memory", and its service.
func NewSeries(name, service string) Series {
	s := Series{Labels: []Label{{labelMetric, name}, {"__delta__", "false"}}}
	s.Add(labelService, service)
	if len(s.Labels) == 2 {
		s.Add(labelService, "unknown_service")
	}
	return s
}

// Add adds a label, as far as the server takes it: characters that a name may not have become "_", a value that is too
// long is cut; a name that is there already, a label without a value and the 21st are left out.
func (s *Series) Add(name, value string) {
	name, value = labelName(name), labelValue(value)
	if name == "" || value == "" || len(s.Labels) >= maxLabels || s.has(name) {
		return
	}
	s.Labels = append(s.Labels, Label{name, value})
}

func (s *Series) has(name string) bool {
	return slices.ContainsFunc(s.Labels, func(l Label) bool { return l.Name == name })
}

// seriesOf gives the series an item belongs to, its labels sorted by name. There is no pid, step or file name among them.
func seriesOf(it *sink.Item) Series {
	out := NewSeries(metricName, it.Identity.ServiceName)
	add := out.Add
	id := it.Identity
	add("memory_kind", it.Kind)
	add("device", it.Device)
	add("view", it.View)
	add("rank", id.Rank)
	add("local_rank", id.LocalRank)
	add("world_size", id.WorldSize)
	for _, r := range renamed {
		add(r.label, id.Resource[r.attr])
	}
	add("hostname", id.Host)
	var rest []string
	for k := range id.Resource {
		known := strings.HasPrefix(k, "process.") ||
			slices.ContainsFunc(renamed, func(r struct{ attr, label string }) bool { return r.attr == k }) ||
			slices.ContainsFunc(unbounded, func(u string) bool { return k == u || strings.HasSuffix(u, ".") && strings.HasPrefix(k, u) })
		if !known {
			rest = append(rest, k)
		}
	}
	slices.Sort(rest)
	for _, k := range rest {
		add(k, id.Resource[k])
	}
	slices.SortFunc(out.Labels, func(a, b Label) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// labelName turns an attribute key into a label name: dotted names are hidden from most of Pyroscope's clients. It is ""
// for what cannot be one.
func labelName(s string) string {
	if strings.HasPrefix(s, reservedPrefix) || len(s) > maxLabelName {
		return ""
	}
	s = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' {
			return r
		}
		return '_'
	}, s)
	if s != "" && s[0] >= '0' && s[0] <= '9' {
		s = "_" + s
	}
	if strings.HasPrefix(s, reservedPrefix) {
		return ""
	}
	return s
}

func labelValue(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxLabelValue {
		return s
	}
	cut := maxLabelValue
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut]
}

// describe names a series in messages.
func describe(ls []Label) string {
	var b strings.Builder
	for _, l := range ls {
		if strings.HasPrefix(l.Name, reservedPrefix) {
			continue
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(l.Name + "=" + strconv.Quote(l.Value))
	}
	return "{" + b.String() + "}"
}
