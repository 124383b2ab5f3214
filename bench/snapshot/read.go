// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"io"
	"os"
	"runtime/pprof"
	"time"

	"github.com/heapwire/heapwire/convert/torchmem"
)

// result is what one reading took.
type result struct {
	Seconds float64 `json:"seconds"`
	Events  int64   `json:"events"`
	Stacks  int     `json:"stacks"`
	Peak    int64   `json:"peak"`
}

// readOne is the child: it reads one file and makes every view of it.
func readOne(path, cpu string) error {
	if cpu != "" {
		f, err := os.Create(cpu)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	start := time.Now()
	s, err := torchmem.Read(f, torchmem.Options{Name: path})
	if err != nil {
		return err
	}
	var r result
	for _, name := range torchmem.Views {
		p, err := s.View(name, "")
		if err != nil {
			return err
		}
		if err := p.Write(io.Discard); err != nil {
			return err
		}
		if name == "alloc" {
			r.Stacks = len(p.Sample)
		}
	}
	r.Seconds = time.Since(start).Seconds()
	for _, d := range s.Devices {
		r.Events += d.Events
		r.Peak += d.Peak
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}
