// SPDX-License-Identifier: Apache-2.0

package examples

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"math/bits"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A truth is what one process says it holds (truth.py).
type truth struct {
	PID   int                  `json:"pid"`
	Time  int64                `json:"time_unix_nano"`
	Last  bool                 `json:"last"`
	Sites map[string]siteTruth `json:"sites"`
}

type siteTruth struct {
	Blocks     int64 `json:"blocks"`
	BlockBytes int64 `json:"block_bytes"`
}

// bytes is what the allocator sets aside for the blocks.
func (s siteTruth) bytes() int64 { return s.Blocks * sizeClass(s.BlockBytes) }

// sizeClass rounds a request up as jemalloc does: four classes between powers of two, at least 16 bytes apart
// (jemalloc(3), section "Implementation notes").
func sizeClass(n int64) int64 {
	if n <= 16 {
		return max((n+7)/8*8, 8)
	}
	step := max(int64(1)<<(bits.Len64(uint64(n-1))-3), 16)
	return (n + step - 1) / step * step
}

func TestSizeClassesAreThoseOfJemalloc(t *testing.T) {
	for request, want := range map[int64]int64{
		1: 8, 16: 16, 17: 32, 128: 128, 129: 160, 513: 640, 1024: 1024, 1025: 1280,
		16385: 20480, 25968: 28672, 36896: 40960, 65473: 65536, 65537: 81920, 1 << 20: 1 << 20,
	} {
		if got := sizeClass(request); got != want {
			t.Errorf("sizeClass(%d) = %d, want %d", request, got, want)
		}
	}
}

// readTruths returns the processes' own figures, and whether the last one has spoken. A file that is not there yet holds none.
func readTruths(path string) (truths []truth, done bool, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	} else if err != nil {
		return nil, false, err
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			return truths, false, nil
		}
		var one truth
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			return nil, false, err
		}
		truths = append(truths, one)
		done = done || one.Last
	}
	return truths, done, nil
}

// A place is a line of a program's source with the function around it.
type place struct {
	function string // qualified
	line     int64
}

// bare is the function's name without the classes and functions around it.
func (p place) bare() string { return p.function[strings.LastIndexByte(p.function, '.')+1:] }

var (
	marker = regexp.MustCompile(`# (?:LEAK|DECOY): (\w+)$`)
	header = regexp.MustCompile(`^( *)(?:async def|def|class) (\w+)`)
)

// markedPlaces finds the lines with a marker comment.
func markedPlaces(t *testing.T, program string) map[string]place {
	t.Helper()
	f, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()

	type scope struct {
		indent int
		name   string
	}
	var open []scope
	places := map[string]place{}
	number := int64(0)
	for s := bufio.NewScanner(f); s.Scan(); {
		number++
		text := s.Text()
		if strings.TrimSpace(text) == "" {
			continue
		}
		indent := len(text) - len(strings.TrimLeft(text, " "))
		open = slices.DeleteFunc(open, func(s scope) bool { return s.indent >= indent })
		if m := header.FindStringSubmatch(text); m != nil {
			open = append(open, scope{indent, m[2]})
		}
		if m := marker.FindStringSubmatch(text); m != nil {
			var names []string
			for _, s := range open {
				names = append(names, s.name)
			}
			places[m[1]] = place{strings.Join(names, "."), number}
		}
	}
	return places
}
