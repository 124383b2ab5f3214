// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/heapwire/heapwire/convert/stack"
)

// Mapping is a row of HEAPWIRE_MAPPINGS: what the process has mapped under one name outside of any allocator.
type Mapping struct {
	Part     string // "files", "shared" or "other": part_<Part> of the figures has it among its sum
	Resident int64  // bytes
	Mapped   int64  // bytes of addresses
	Count    int64  // mappings
	Name     string // path, or the kernel's name in brackets; only the end of a long one
}

const (
	// maxMappings bounds what is kept of a dump. The shim writes 32.
	maxMappings   = 1024
	mappingFields = 5
)

// namedMappingLine reads "part<TAB>resident<TAB>mapped<TAB>count<TAB>name".
func (p *parser) namedMappingLine(line []byte) {
	fields := bytes.SplitN(line, []byte("\t"), mappingFields)
	if len(fields) < mappingFields || len(fields[0]) == 0 || len(fields[4]) == 0 {
		p.garbage(line)
		return
	}
	var numbers [3]int64
	for i := range numbers {
		n, rest, ok := number(fields[i+1])
		if !ok || len(rest) > 0 || n > math.MaxInt64 {
			p.garbage(line)
			return
		}
		numbers[i] = int64(n)
	}
	if len(p.named) == maxMappings {
		return
	}
	p.named = append(p.named, Mapping{
		Part: unescape(fields[0]), Resident: numbers[0], Mapped: numbers[1], Count: numbers[2], Name: unescape(fields[4]),
	})
}

// accountParts are the parts of resident memory (docs/spool.md), largest interest first.
var accountParts = []struct{ key, name string }{
	{"part_allocator", "jemalloc"},
	{"part_python_arenas", "pymalloc arenas"},
	{"part_stacks", "stacks"},
	{"part_heap", "brk heap"},
	{"part_files", "mapped files"},
	{"part_shared", "shared memory"},
	{"part_other", "other anonymous"},
}

// Part is one line of an account: bytes of resident memory and what they are.
type Part struct {
	Name  string
	Bytes int64
	Note  string // figures that explain it; may be empty
}

// Account splits resident memory into parts that add up to it: the last part is what no other explains, and may be negative,
// since memory changes while it is counted. Nil for a dump without such figures.
func (m Meta) Account() (parts []Part, resident int64) {
	resident, ok := m.Figure("rss")
	if _, counted := m.Figure("part_sum"); !ok || !counted {
		return nil, resident
	}
	rest := resident
	for _, p := range accountParts {
		n, ok := m.Figure(p.key)
		if !ok {
			continue
		}
		rest -= n
		parts = append(parts, Part{Name: p.name, Bytes: n, Note: m.note(p.key)})
	}
	return append(parts, Part{Name: "not explained", Bytes: rest}), resident
}

func (m Meta) note(part string) string {
	size := func(key string) string { return stack.Size(m.Figures[key]) }
	switch part {
	case "part_allocator":
		if _, ok := m.Figure("allocated"); ok {
			return fmt.Sprintf("%s allocated, %s active, %s of its own, %s retained", size("allocated"), size("active"), size("metadata"), size("retained"))
		}
	case "part_python_arenas":
		if n := m.Figures["python_arenas"]; n > 0 {
			return fmt.Sprintf("%d arenas, %s in blocks in use", n, size("python_block_bytes"))
		}
	case "part_stacks":
		if n := m.Figures["thread_stacks"]; n > 0 {
			return fmt.Sprintf("%d stacks", n)
		}
	}
	return ""
}

// shownMappings is how many names WriteAccount shows.
const shownMappings = 10

// WriteAccount writes the account as a table for a person, and the largest named mappings. Nothing for a dump without such
// figures.
func WriteAccount(w io.Writer, m Meta, mappings []Mapping) error {
	parts, resident := m.Account()
	if parts == nil {
		return nil
	}
	split := ""
	for _, key := range []string{"anon", "file", "shmem", "swap"} {
		if n, ok := m.Figure(key); ok {
			split += fmt.Sprintf(", %s %s", key, stack.Size(n))
		}
	}
	fmt.Fprintf(w, "resident memory: %s%s\n", stack.Size(resident), split)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	for _, p := range parts {
		if p.Bytes != 0 {
			fmt.Fprintf(tw, "%s\t%.1f%%\t  %s\n", signed(p.Bytes), 100*float64(p.Bytes)/float64(max(resident, 1)), describe(p.Name, p.Note))
		}
	}
	for i, v := range mappings {
		if i == shownMappings {
			break
		}
		if i == 0 {
			fmt.Fprint(tw, "\t\t  largest mappings by name\n")
		}
		fmt.Fprintf(tw, "%s\t%.1f%%\t  %s\n", stack.Size(v.Resident), 100*float64(v.Resident)/float64(max(resident, 1)), printable(v.Name))
	}
	return tw.Flush()
}

func signed(n int64) string {
	if n < 0 {
		return "-" + stack.Size(-n)
	}
	return stack.Size(n)
}

func describe(name, note string) string {
	if note == "" {
		return name
	}
	return name + ": " + note
}

// printable keeps a file's name from moving the cursor.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return '\uFFFD'
	}, s)
}
