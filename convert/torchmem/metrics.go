// SPDX-License-Identifier: Apache-2.0

package torchmem

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
	return out
}
