// SPDX-License-Identifier: Apache-2.0

// Snapshot measures what docs/performance.md reports about memory snapshots: how long a file takes to become profiles and
// how much memory, beside what CPython's pickle.load takes to read the same file.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
)

func main() {
	var o options
	flag.StringVar(&o.python, "python", "python3", "interpreter to compare with; empty: none")
	flag.StringVar(&o.dir, "dir", "", "make the files in this folder and keep them, or use those that are there (default: a temporary one)")
	flag.StringVar(&o.generator, "generator", "", "make the files with this gen_snapshot.py instead of convert/torchmem/snapgen")
	flag.StringVar(&o.only, "only", "", "measure only this file, such as 1GB")
	flag.IntVar(&o.rounds, "rounds", 3, "runs of each; the fastest counts")
	child := flag.String("read", "", "read this file, print what it took, and leave")
	write := flag.String("write", "", "make the file that -only names here, and leave")
	cpu := flag.String("cpuprofile", "", "with -read: write a CPU profile here")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	var err error
	switch {
	case *child != "":
		err = readOne(*child, *cpu)
	case *write != "":
		err = writeOne(*write, o.only)
	default:
		err = o.measure(ctx, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/snapshot:", err)
		os.Exit(1)
	}
}

var errOver = errors.New("over the budget")
