// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"fmt"
	"math"
)

var (
	magic           = []byte("heap_v2/")
	leading         = []byte("<jemalloc>:")
	allThreads      = []byte("t*:")
	mappedLibraries = []byte("MAPPED_LIBRARIES:")
	sectionPrefix   = []byte("HEAPWIRE_")
)

// maxLeading bounds the lines before the header.
const maxLeading = 100

// header reads up to and including "heap_v2/<sample bytes>". Lines of jemalloc's own before it are stderr mixed into the
// dump: the summary of prof_leak (jemalloc#1977).
func (p *parser) header() error {
	for p.lines.next() {
		line := trimRight(p.lines.line)
		switch {
		case p.lines.long && !bytes.HasPrefix(line, magic):
			return p.errorf("%w: %s", ErrNotHeapV2, foreign(line))
		case bytes.HasPrefix(line, magic):
			return p.sampleRate(line)
		case !p.lines.whole && bytes.HasPrefix(magic, line):
			return p.errorf("%w: it ends at byte %d, in the header line", ErrTruncated, p.lines.base)
		case len(line) == 0 || bytes.HasPrefix(line, leading):
			if p.report.LeadingLines++; p.report.LeadingLines > maxLeading {
				return p.errorf("%w: no heap_v2/ line among the first %d", ErrNotHeapV2, maxLeading)
			}
		default:
			return p.errorf("%w: %s", ErrNotHeapV2, foreign(line))
		}
	}
	if err := p.lines.failure(); err != nil {
		return fmt.Errorf("%s: reading byte %d: %w", p.opts.Name, p.lines.base, err)
	}
	if p.lines.base == 0 {
		return fmt.Errorf("%s: %w: the input is empty", p.opts.Name, ErrNotHeapV2)
	}
	return fmt.Errorf("%s: byte %d: %w: no heap_v2/ line", p.opts.Name, p.lines.base, ErrNotHeapV2)
}

func (p *parser) sampleRate(line []byte) error {
	if !p.lines.whole {
		return p.errorf("%w: it ends at byte %d, in the header line", ErrTruncated, p.lines.base)
	}
	n, rest, ok := number(line[len(magic):])
	if !ok || len(rest) != 0 || n == 0 || n > math.MaxInt64 {
		// Without the sampling interval no number of the dump can be scaled: raw ones would pass for totals.
		return p.errorf("%w: header: want heap_v2/<bytes between samples>, at least 1, got %s", ErrNotHeapV2, quote(line))
	}
	p.sampleBytes = float64(n)
	p.report.SampleBytes = int64(n)
	return nil
}

// foreign names a format by its first line.
func foreign(line []byte) string {
	has := func(s string) bool { return bytes.HasPrefix(line, []byte(s)) }
	in := func(s string) bool { return bytes.Contains(line, []byte(s)) }
	switch {
	case has("heap profile:") && (in("@ heap_v2/") || in("@ heapz_v2/") || in("@ heapprofile")):
		return "this is a heap profile of gperftools (or of jemalloc 3 and older): " + quote(line)
	case has("heap profile:") && in("@ heap/"):
		return "this is a heap profile in Go's text form: " + quote(line)
	case has("heap profile:"):
		return "this is a heap profile of another tool: " + quote(line)
	case has("--- heapz"):
		return "this is a Java heap profile (heapz): " + quote(line)
	case has("heap_v"):
		return "this is another version of jemalloc's format: " + quote(line)
	case has("\x1f\x8b"):
		return "this is gzip: a compressed dump, or a pprof profile"
	case has("\x28\xb5\x2f\xfd"):
		return "this is zstd: a compressed dump"
	case has("\x7fELF"):
		return "this is an ELF file"
	case len(line) > 1 && line[0] == 0x80 && line[1] <= 5:
		return "this is a Python pickle, perhaps a memory snapshot of PyTorch"
	case binary(line):
		return "this is binary data: " + quote(line)
	}
	return "want heap_v2/<bytes between samples>, got " + quote(line)
}

func binary(line []byte) bool {
	for _, c := range line[:min(len(line), 80)] {
		if c < ' ' && c != '\t' || c == 0x7f {
			return true
		}
	}
	return false
}

// quote makes at most 80 bytes of an input fit for a message.
func quote(text []byte) string {
	if len(text) > 80 {
		return fmt.Sprintf("%q…", text[:80])
	}
	return fmt.Sprintf("%q", text)
}
