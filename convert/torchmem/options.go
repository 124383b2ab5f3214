// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"errors"
	"time"

	"github.com/heapwire/heapwire/convert/pickle"
)

// ErrNotSnapshot says that the input is a pickle, but holds neither segments nor traces.
var ErrNotSnapshot = errors.New("not a memory snapshot of PyTorch")

// Options says how to read a snapshot. The zero value is right for a file of unknown origin.
type Options struct {
	// Name is what errors and warnings call the input, usually its path.
	Name string
	// Kind of the devices: "cuda", "npu", "xpu". Empty: told by the content, cuda if nothing speaks against it.
	Kind string
	// Time of the dump, for snapshots whose events carry none (NPU, PyTorch before 2.2): the file's modification time.
	Time time.Time
	// Sidecar is what the JSON beside the snapshot says, nil without one. Its time beats Time, its kind of
	// device holds where Kind is empty.
	Sidecar *Sidecar
	// AllFrames keeps the frames that PyTorch's own viewer leaves out, see [View].
	AllFrames bool
	// OOMs is how many out-of-memory entries of a device become profiles, the first and the last half of it; 8.
	OOMs int
	// LeakSteps is from how many steps a stack must have survivors to count as a leak; 3.
	LeakSteps int
	// Limits bound what a hostile pickle can cost.
	Limits pickle.Limits
	// MaxStacks bounds the distinct stacks; 1 Mi. What comes after reads as [StackLeftOut].
	MaxStacks int
	// MaxLive bounds the blocks that are live at a time on a device; 4 Mi. What comes after is counted and not shown.
	MaxLive int
}

func (o Options) withDefaults() Options {
	for _, f := range []struct {
		field *int
		value int
	}{{&o.OOMs, 8}, {&o.LeakSteps, 3}, {&o.MaxStacks, 1 << 20}, {&o.MaxLive, 4 << 20}} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	o.OOMs = max(o.OOMs, 2)
	if s := o.Sidecar; s != nil {
		o.Kind = cmp.Or(o.Kind, s.DeviceKind)
		if !s.Time.IsZero() {
			o.Time = s.Time
		}
	}
	if o.Name == "" {
		o.Name = "snapshot"
	}
	return o
}
