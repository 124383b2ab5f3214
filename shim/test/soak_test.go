// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// Every danger for many rounds, with a watchdog of 5 s a round, under each Python. Run by `make soak-shim`, which sets
// HEAPWIRE_SOAK: 1, or a factor for all the rounds.
func TestSoak(t *testing.T) {
	factor, err := strconv.ParseFloat(os.Getenv("HEAPWIRE_SOAK"), 64)
	if err != nil || factor <= 0 {
		t.Skip("HEAPWIRE_SOAK is not set: make soak-shim")
	}
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	total := 0
	row := func(name, python string, rounds int, longest, took time.Duration, what string) {
		total += rounds
		line := fmt.Sprintf("%-64s %-8s %7d %8.2f s %7.0f s  %s", name, python, rounds, longest.Seconds(), took.Seconds(), what)
		fmt.Fprintln(&table, line)
		t.Log(line)
	}
	for _, d := range dangers {
		those := []pythons.Python{{}}
		if d.python != "" {
			those = nil
			for _, p := range all {
				if p.Supported() {
					those = append(those, p)
				}
			}
		}
		for _, p := range those {
			name := "-"
			if d.python != "" {
				name = p.String()
			}
			rounds := max(1, int(float64(d.long)*factor))
			t.Run(d.name+"/"+name, func(t *testing.T) {
				start := time.Now()
				o := d.underTheShim(t, roundLimit, p, rounds)
				what := "good"
				if !o.well(rounds) {
					what = o.String()
					t.Error(what)
				}
				row(d.name, name, o.rounds, o.longest, time.Since(start), what)
			})
		}
	}
	t.Run("killed at any instant", func(t *testing.T) {
		start, halves, rounds, longest := time.Now(), 0, max(1, int(100*factor)), time.Duration(0)
		for range rounds {
			begin := time.Now()
			_, h := killedUnderTheShim(t)
			halves += h
			longest = max(longest, time.Since(begin))
		}
		if halves != 0 {
			t.Errorf("%d half dumps under final names", halves)
		}
		row("killed at any instant", "-", rounds, longest, time.Since(start), fmt.Sprintf("%d half dumps", halves))
	})
	t.Logf("\n%-64s %-8s %7s %10s %9s\n%s%d rounds", "danger", "Python", "rounds", "longest", "took", &table, total)
	if want := int(10000 * min(factor, 1)); total < want {
		t.Errorf("%d rounds in all, want %d", total, want)
	}
}
