// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/heapwire/heapwire/exporter/spool"
)

// limitFlags bound what waits in the spool; 0 is the pipeline's default.
type limitFlags struct {
	bytes sizeValue
	files int
	age   time.Duration
}

func (f *limitFlags) register(flags *pflag.FlagSet) {
	flags.Var(&f.bytes, "spool-max-bytes", "most bytes that may wait in the spool, plain dumps are dropped first (default 1GiB)")
	flags.IntVar(&f.files, "spool-max-files", 0, "most dumps that may wait in the spool (default 20000)")
	flags.DurationVar(&f.age, "spool-max-age", 0, "longest time that a dump may wait in the spool (default 24h)")
}

func (f *limitFlags) limits() spool.Limits {
	return spool.Limits{Bytes: int64(f.bytes), Files: f.files, Age: f.age}
}
