// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"maps"
	"slices"
)

// Metric is a figure of one device, as a gauge.
type Metric struct {
	Name, Unit, Description string
	Device                  string
	Value                   int64
}

// Metrics are the gauges of a snapshot. The semantic conventions have none for a caching allocator: hw.gpu.memory.usage
// is what the device has in use, whoever uses it.
func (s *Snapshot) Metrics() []Metric {
	var out []Metric
	for _, d := range s.Devices {
		add := func(name, unit, description string, value int64) {
			out = append(out, Metric{"heapwire.device.memory." + name, unit, description, d.Name, value})
		}
		add("reserved", "By", "Memory the allocator has from the device.", d.Reserved)
		add("active", "By", "Sizes of the blocks in use.", d.Active)
		add("requested", "By", "Bytes the program asked for in the blocks in use.", d.Requested)
		add("inactive", "By", "Sizes of the blocks not in use.", d.Inactive)
		add("largest_hole", "By", "Largest block not in use.", d.LargestHole)
		add("pending", "By", "Requested bytes of freed blocks that wait for another stream.", d.Pending)
		add("segments", "{segment}", "Segments.", int64(d.Segments))
		if d.Workspaces > 0 {
			add("workspace", "By", "Operator workspaces outside the caching allocator.", d.Workspace)
		}
		if d.Events == 0 {
			continue
		}
		add("peak", "By", "Highest requested bytes in the window.", d.Peak)
		add("window.events", "{event}", "Events in the window.", d.Events)
		add("window.allocations", "{allocation}", "Allocations in the window.", d.AllocObjects)
		add("window.frees", "{free}", "Frees in the window.", d.FreeObjects)
		add("window.segment_allocations", "{segment}", "Segments and ranges added in the window.", d.SegmentAllocs)
		add("window.ooms", "{error}", "Out-of-memory errors in the window.", d.OOMCount)
		if d.Leak.Judged {
			add("leak", "By", "Survivors of stacks that have them from several steps.", d.Leak.Bytes)
		}
	}
	return append(out, s.opts.Sidecar.Metrics()...)
}

// statistics are the figures of torch.cuda.memory_stats and host_memory_stats that become gauges: those that a snapshot does not hold. The
// others, and those of the two pools, say what the snapshot says.
var statistics = []struct{ key, unit, description string }{
	{"num_alloc_retries", "{retry}", "Times that the allocator gave its cache back and tried again."},
	{"num_ooms", "{error}", "Out-of-memory errors."},
	{"num_oom_rejections", "{error}", "Out-of-memory errors by the allocator's own policy."},
	{"num_sync_all_streams", "{call}", "Synchronisations with all streams."},
	{"num_device_alloc", "{call}", "Allocations from the device."},
	{"num_device_free", "{call}", "Frees to the device."},
	{"allocated_bytes.all.current", "By", "Sizes of the blocks that the program has."},
	{"allocated_bytes.all.peak", "By", "Highest of allocated_bytes."},
	{"active_bytes.all.peak", "By", "Highest of active_bytes."},
	{"requested_bytes.all.peak", "By", "Highest of requested_bytes."},
	{"reserved_bytes.all.peak", "By", "Highest of reserved_bytes."},
	{"inactive_split_bytes.all.current", "By", "Inactive blocks that were split off and cannot be given back."},
	{"inactive_split_bytes.all.peak", "By", "Highest of inactive_split_bytes."},
	{"oversize_allocations.current", "{allocation}", "Allocations above max_split_size."},
	{"oversize_segments.current", "{segment}", "Segments above max_split_size."},
	// Of pinned host memory, torch.cuda.host_memory_stats. PyTorch before 2.10 calls reserved_bytes what is allocated_bytes since.
	{"active_bytes.current", "By", "Sizes of the pinned blocks in use."},
	{"active_bytes.peak", "By", "Highest of active_bytes."},
	{"allocated_bytes.current", "By", "Sizes of the pinned blocks, kept ones too; before PyTorch 2.10 of those in use."},
	{"allocated_bytes.peak", "By", "Highest of allocated_bytes."},
	{"reserved_bytes.current", "By", "Sizes of the pinned blocks, kept ones too, before PyTorch 2.10."},
	{"num_host_alloc", "{call}", "Allocations of pinned memory from the driver."},
	{"num_host_free", "{call}", "Frees of pinned memory to the driver."},
}

// Metrics are the gauges that a sidecar has beyond its snapshot: those of torch.cuda.memory_stats that PyTorch counts from
// the process's start, by the names they have there, and the device's memory, by the semantic conventions' names.
func (s *Sidecar) Metrics() []Metric {
	if s == nil {
		return nil
	}
	var out []Metric
	for _, device := range slices.Sorted(maps.Keys(s.MemoryStats)) {
		for _, st := range statistics {
			if v, ok := s.MemoryStats[device][st.key]; ok {
				out = append(out, Metric{"heapwire.device.memory.stats." + st.key, st.unit, st.description, device, v})
			}
		}
	}
	if s.Total > 0 && s.Device != "" {
		out = append(out, Metric{"hw.gpu.memory.limit", "By", "Size of the GPU memory.", s.Device, s.Total})
		if s.Free >= 0 && s.Free <= s.Total {
			out = append(out, Metric{"hw.gpu.memory.usage", "By", "GPU memory used.", s.Device, s.Total - s.Free})
		}
	}
	return out
}
