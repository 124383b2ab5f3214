// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"

	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/torchmem"
)

const (
	// pinnedShare is the share of what an allocator of pinned memory gave that rounding up must take to be told.
	pinnedShare = 0.2
)

// Device says what one snapshot of a device's memory means: survivors that recur from step to step, fragmentation, pinned
// memory that was rounded up.
func Device(d *torchmem.Device) []Verdict {
	var out []Verdict
	if l := d.Leak; l.Judged && len(l.Stacks) > 0 && l.Bytes >= leastGrowth {
		v := Verdict{
			Kind: Leak, Bytes: l.Bytes, Confidence: 1,
			Says:    d.Name + ": " + l.Verdict(),
			Helps:   "find what keeps these tensors over a step: a list of losses with their graphs (use .item() or .detach()), a cache by shape, a hook that keeps its inputs",
			Numbers: []Number{{"growth", float64(l.Bytes)}, {"objects", float64(l.Objects)}, {"steps", float64(l.Steps)}, {"growth_per_step", float64(l.Stacks[0].PerStep)}},
		}
		for _, f := range l.Stacks[0].Stack {
			v.Stack.Frames = append(v.Stack.Frames, stack.Frame{Function: f.Name, File: f.File, Line: f.Line, Python: f.Python})
		}
		for len(v.Stack.Frames) > 1 && !v.Stack.Frames[0].Python {
			v.Stack.Callees = append(v.Stack.Callees, v.Stack.Frames[0])
			v.Stack.Frames = v.Stack.Frames[1:]
		}
		out = append(out, v)
	}
	if f := d.Fragmentation(); f.High {
		v := Verdict{
			Kind: Fragmentation, Bytes: d.Inactive, Confidence: 1,
			Says: fmt.Sprintf("%s: %s of %s reserved (%.0f%%) are inactive: %s in segments without any live block, %s in holes that live blocks pin; the largest hole is %s, so that a larger request needs new memory",
				d.Name, stack.Size(d.Inactive), stack.Size(d.Reserved), 100*f.Share, stack.Size(f.Empty), stack.Size(f.Pinned), stack.Size(d.LargestHole)),
			Helps: "PYTORCH_ALLOC_CONF=expandable_segments:True; empty_cache returns empty segments only; the view inactive tells which lines pin the others",
			Numbers: []Number{
				{"inactive", float64(d.Inactive)}, {"reserved", float64(d.Reserved)}, {"largest_hole", float64(d.LargestHole)},
				{"empty_segments", float64(f.Empty)}, {"pinned_segments", float64(f.Pinned)},
			},
		}
		out = append(out, v)
	}
	if d.Kind == "pinned" && d.Rounding >= leastFigure && float64(d.Rounding) >= pinnedShare*float64(d.Active) {
		out = append(out, Verdict{
			Kind: Rounding, Bytes: d.Rounding, Confidence: 1,
			Says: fmt.Sprintf("pinned memory of the host: %s were asked for, %s were got: %s are lost to rounding up to powers of two",
				stack.Size(d.Requested), stack.Size(d.Active), stack.Size(d.Rounding)),
			Helps:   "PYTORCH_ALLOC_CONF=pinned_use_cuda_host_register:True with pinned_num_register_threads, or buffers whose size is a little below a power of two",
			Numbers: []Number{{"requested", float64(d.Requested)}, {"got", float64(d.Active)}, {"rounding", float64(d.Rounding)}},
		})
	}
	return out
}
