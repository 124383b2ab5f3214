// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"slices"

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
		v.Key, v.Stack = namedOf(l.Stacks[0].Stack)
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
		out = append(out, rounded(d))
	}
	return out
}

// rounded tells what rounding up costs, and the line that loses most of it.
func rounded(d *torchmem.Device) Verdict {
	v := Verdict{
		Kind: Rounding, Bytes: d.Rounding, Confidence: 1,
		Says: fmt.Sprintf("pinned memory of the host: %s were asked for, %s were got: %s are lost to rounding up to powers of two",
			stack.Size(d.Requested), stack.Size(d.Active), stack.Size(d.Rounding)),
		Helps:   "buffers whose size is a little below a power of two; PYTORCH_ALLOC_CONF=pinned_max_round_threshold_mb:N (PyTorch of 2026 and later) rounds nothing above N MiB",
		Numbers: []Number{{"requested", float64(d.Requested)}, {"got", float64(d.Active)}, {"rounding", float64(d.Rounding)}},
	}
	if len(d.Rounded) > 0 {
		most := d.Rounded[0]
		v.Key, v.Stack = namedOf(most.Stack)
		v.Says += fmt.Sprintf(", %s of it at %s", stack.Size(most.Bytes), v.Stack.Place())
		v.Numbers = append(v.Numbers, Number{"rounding_here", float64(most.Bytes)}, Number{"objects_here", float64(most.Objects)})
	}
	return v
}

// namedOf are the frames of a snapshot's stack from its innermost Python frame outwards, and from there inwards.
func namedOf(frames []torchmem.Frame) (uint64, Named) {
	var n Named
	for _, f := range frames {
		n.Frames = append(n.Frames, stack.Frame{Function: f.Name, File: f.File, Line: f.Line, Python: f.Python})
	}
	if at := slices.IndexFunc(n.Frames, func(f stack.Frame) bool { return f.Python }); at > 0 {
		n.Callees = slices.Clone(n.Frames[:at])
		slices.Reverse(n.Callees)
		n.Frames = n.Frames[at:]
	}
	return keyOf(n.Frames), n
}
