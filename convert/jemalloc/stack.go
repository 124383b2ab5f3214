// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"math"
	"math/bits"
)

// counts are the figures of a t line as printed: current objects and bytes, accumulated objects and bytes.
type counts struct {
	objects, bytes, accumObjects, accumBytes uint64
}

// noStack stands in the address table for the missing frame of a bare "@": no return address is 0.
const noStack = 0

// maxEstimate bounds what one line may claim after scaling, an exbibyte: beyond it the numbers are garbage, and sums of
// them would overflow an int64.
const maxEstimate = 1 << 60

// stackFrames reads what follows the "@": addresses, leaf first.
func (p *parser) stackFrames(line []byte) {
	p.endStack()
	p.open = true
	if p.lines.long {
		line = line[:bytes.LastIndexByte(line, ' ')+1] // the last address may have lost its end
	}
	ok := p.readAddresses(line)
	p.frames = p.table.ids(p.frames[:0], p.addresses)
	if !ok {
		p.garbage(line)
	}
}

// readAddresses reads hexadecimal addresses with blanks between them. It returns false if some word is none; the others
// are there.
func (p *parser) readAddresses(line []byte) bool {
	p.addresses = p.addresses[:0]
	garbage := false
	for i := 0; i < len(line); {
		if line[i] == ' ' || line[i] == '\t' {
			i++
			continue
		}
		start := i
		if len(line)-i > 2 && line[i] == '0' && line[i+1] == 'x' {
			i += 2
		}
		var address uint64
		digits := i
		for i < len(line) {
			d := hexDigit[line[i]]
			if d > 15 {
				break
			}
			address = address<<4 | uint64(d)
			i++
		}
		if n := i - digits; n == 0 || n > 16 || i < len(line) && line[i] != ' ' && line[i] != '\t' {
			garbage = true
			for i = start; i < len(line) && line[i] != ' ' && line[i] != '\t'; i++ {
			}
			continue
		}
		if len(p.addresses) == maxDepth {
			p.report.DeepStacks++
			break
		}
		p.addresses = append(p.addresses, address)
	}
	return !garbage
}

// stackCounts reads a "t*:" line: of the stack that waits for it, or the header's.
func (p *parser) stackCounts(line []byte) {
	c, rest, ok := parseCounts(line[len(allThreads):])
	if !ok || len(rest) != 0 {
		if p.lines.whole || p.lines.long {
			p.garbage(line)
			p.open = false
		}
		return
	}
	switch {
	case p.open:
		p.open, p.counted = false, true
		p.addStack(c, line)
	case p.total == nil && p.report.Stacks == 0 && p.report.CutStacks == 0:
		p.total = &c
	default:
		p.report.UnknownLines++
		p.note(unknownLine, line)
	}
}

func (p *parser) addStack(c counts, line []byte) {
	p.report.Stacks++
	if len(p.frames) == 0 {
		p.report.EmptyStacks++
		p.frames = append(p.frames, p.table.id(noStack))
	}
	v, ok := estimate(c, p.sampleBytes)
	if !ok {
		p.counted = false
		p.garbage(line)
		return
	}
	p.sumObjects += float64(c.objects)
	p.sumBytes += float64(c.bytes)
	if c.objects == 1 {
		p.singles++
		if sizeClass(c.bytes) {
			p.singlesClass++
		}
	}
	for i, x := range v {
		p.report.Estimate[i] += x
	}
	if c.objects == 0 {
		p.report.IdleStacks++
	}
	p.stacks.add(entry{frames: p.arena.add(p.frames), value: v})
}

// estimate scales both pairs of a line. Objects without bytes cannot be: the allocator's smallest object has 8.
func estimate(c counts, sampleBytes float64) (v values, ok bool) {
	if c.objects > 0 && c.bytes == 0 || c.accumObjects > 0 && c.accumBytes == 0 {
		return v, false
	}
	v[inuseObjects], v[inuseSpace] = scale(c.objects, c.bytes, sampleBytes)
	v[allocObjects], v[allocSpace] = scale(c.accumObjects, c.accumBytes, sampleBytes)
	for _, x := range v {
		if !(x < maxEstimate) {
			return v, false
		}
	}
	return v, true
}

// parseCounts reads " <objs>: <bytes> [<objs>: <bytes>]" and returns what follows, trimmed.
func parseCounts(b []byte) (c counts, rest []byte, ok bool) {
	if c.objects, b, ok = number(b); !ok {
		return c, nil, false
	}
	if b, ok = char(b, ':'); !ok {
		return c, nil, false
	}
	if c.bytes, b, ok = number(b); !ok {
		return c, nil, false
	}
	if b, ok = char(b, '['); !ok {
		return c, nil, false
	}
	if c.accumObjects, b, ok = number(b); !ok {
		return c, nil, false
	}
	if b, ok = char(b, ':'); !ok {
		return c, nil, false
	}
	if c.accumBytes, b, ok = number(b); !ok {
		return c, nil, false
	}
	if b, ok = char(b, ']'); !ok {
		return c, nil, false
	}
	return c, trimLeft(b), true
}

// number reads blanks and an unsigned decimal number of 64 bits.
func number(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for i < len(b) && b[i] == ' ' {
		i++
	}
	start := i
	for ; i < len(b) && isDigit(b[i]); i++ {
		hi, lo := bits.Mul64(n, 10)
		d := uint64(b[i] - '0')
		if hi != 0 || lo > math.MaxUint64-d {
			return 0, b, false
		}
		n = lo + d
	}
	return n, b[i:], i > start
}

// char reads blanks and one character.
func char(b []byte, c byte) ([]byte, bool) {
	i := 0
	for i < len(b) && b[i] == ' ' {
		i++
	}
	if i == len(b) || b[i] != c {
		return b, false
	}
	return b[i+1:], true
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

var hexDigit = func() (t [256]uint8) {
	for i := range t {
		t[i] = 0xff
	}
	for i := range 10 {
		t['0'+i] = uint8(i)
	}
	for i := range 6 {
		t['a'+i] = uint8(10 + i)
		t['A'+i] = uint8(10 + i)
	}
	return t
}()

// hexNumber reads hexadecimal digits, at most 16.
func hexNumber(b []byte) (n uint64, rest []byte, ok bool) {
	i := 0
	for ; i < len(b) && hexDigit[b[i]] <= 15; i++ {
		n = n<<4 | uint64(hexDigit[b[i]])
	}
	return n, b[i:], 0 < i && i <= 16
}

// sizeClass tells whether jemalloc has blocks of that size (64-bit, 16 byte quantum): 8, steps of 16 to 128, then four
// per doubling.
func sizeClass(n uint64) bool {
	switch {
	case n == 8:
		return true
	case n <= 128:
		return n > 0 && n%16 == 0
	}
	step := uint64(1) << (bits.Len64(n-1) - 3)
	return n%step == 0
}
