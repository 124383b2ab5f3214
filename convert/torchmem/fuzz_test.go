// SPDX-License-Identifier: Apache-2.0

package torchmem_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/convert/torchmem/snapgen"
)

// FuzzSnapshot: an error comes without a snapshot; a snapshot can be walked, its views are valid profiles, and they add up
// to the device's figures.
func FuzzSnapshot(f *testing.F) {
	small := snapgen.Options{Steps: 1, Layers: 1, Depth: 3}
	for _, form := range snapgen.Forms {
		o := small
		o.Form = form
		f.Add(write(f, snapgen.Generate(o)))
	}
	for _, o := range []snapgen.Options{
		{Steps: 2, Layers: 1, Depth: 2, OOM: true, Unwind: true, Capacity: 200 << 20, HostSegments: true, Extra: true},
		{Steps: 3, Layers: 1, Depth: 2, Leak: 1 << 20, StepMarks: true, Forward: true, TracesFirst: true},
		{Steps: 1, Layers: 1, Depth: 2, Form: snapgen.FormNPUMaster, Workspaces: 2, Expandable: true, EmptyCache: true, PrivatePools: true},
	} {
		f.Add(write(f, snapgen.Generate(o)))
	}
	f.Add(snapshotOf([]any{segmentOf(uint64(1)<<63, 1024, blockOf(uint64(1)<<63, 512, 500, "active_pending_free"))}, []any{event("oom", 5, 600), event("free", 1, 2)}))
	if dir := os.Getenv("HEAPWIRE_TESTDATA"); dir != "" {
		if data, err := os.ReadFile(filepath.Join(dir, "snapshots", "cuda26-tiny.pickle")); err == nil {
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := torchmem.Read(bytes.NewReader(data), torchmem.Options{})
		if err != nil {
			if s != nil {
				t.Fatal("a snapshot beside an error")
			}
			return
		}
		check(t, s)
	})
}
