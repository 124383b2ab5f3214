// SPDX-License-Identifier: Apache-2.0

package snapgen

import (
	"bufio"
	"encoding/binary"
	"io"
	"math"
	"math/bits"
)

// The values that a pickle is made of, beside int64, uint64, bool, float64, nil and string, which is an object of its own
// each time.
type (
	// Str is a string object that is used more than once.
	Str struct {
		text string
		memo uint32
	}
	// Dict keeps its keys in order.
	Dict struct {
		pairs []any // key, value, ...
		memo  uint32
	}
	// List is the items, or n of what next makes of their number.
	List struct {
		items []any
		n     int
		next  func(int) any
		memo  uint32
		// shared tells torch::jit::Pickler, which memoises containers only when it meets them again.
		shared bool
	}
	// Tuple of two.
	Tuple struct {
		items [2]any
		memo  uint32
	}
)

func (l *List) len() int {
	if l.next != nil {
		return l.n
	}
	return len(l.items)
}

func (l *List) at(i int) any {
	if l.next != nil {
		return l.next(i)
	}
	return l.items[i]
}

// pickler writes as CPython's C pickler does (Modules/_pickle.c), or as torch::jit::Pickler for cpp.
type pickler struct {
	w        *bufio.Writer
	protocol int
	cpp      bool
	memo     uint32
	frame    []byte
	texts    map[string]uint32 // cpp: strings are memoised by value
}

const (
	batchSize   = 1000
	frameTarget = 64 << 10
)

func writePickle(w io.Writer, v any, protocol int, cpp bool) error {
	p := &pickler{w: bufio.NewWriterSize(w, 1<<20), protocol: protocol, cpp: cpp, texts: map[string]uint32{}}
	if cpp {
		p.protocol = 2
	}
	p.write([]byte{0x80, byte(p.protocol)})
	p.save(v)
	p.emit('.')
	p.commit()
	return p.w.Flush()
}

// write leaves errors to Flush, which returns the first of them.
func (p *pickler) write(b []byte) { _, _ = p.w.Write(b) }

func (p *pickler) emit(b ...byte) { p.frame = append(p.frame, b...) }

// commit ends a frame; protocols before 4 have none.
func (p *pickler) commit() {
	if p.protocol >= 4 {
		var head [9]byte
		head[0] = 0x95
		binary.LittleEndian.PutUint64(head[1:], uint64(len(p.frame)))
		p.write(head[:])
	}
	p.write(p.frame)
	p.frame = p.frame[:0]
}

// put memoises what was written last; the index plus one.
func (p *pickler) put() uint32 {
	i := p.memo
	p.memo++
	switch {
	case p.protocol >= 4:
		p.emit(0x94)
	case i < 256:
		p.emit('q', byte(i))
	default:
		p.frame = binary.LittleEndian.AppendUint32(append(p.frame, 'r'), i)
	}
	return i + 1
}

func (p *pickler) get(memo uint32) {
	if i := memo - 1; i < 256 {
		p.emit('h', byte(i))
	} else {
		p.frame = binary.LittleEndian.AppendUint32(append(p.frame, 'j'), i)
	}
}

func (p *pickler) text(s string) {
	if p.protocol >= 4 && len(s) < 256 {
		p.emit(0x8c, byte(len(s)))
	} else {
		p.frame = binary.LittleEndian.AppendUint32(append(p.frame, 'X'), uint32(len(s)))
	}
	p.frame = append(p.frame, s...)
}

func (p *pickler) str(s string, memo *uint32) {
	switch {
	case p.cpp:
		if m := p.texts[s]; m != 0 {
			p.get(m)
			return
		}
		p.text(s)
		p.texts[s] = p.put()
	case memo != nil && *memo != 0:
		p.get(*memo)
	default:
		p.text(s)
		m := p.put()
		if memo != nil {
			*memo = m
		}
	}
}

func (p *pickler) integer(v int64) {
	switch {
	case v >= 0 && v < 256:
		p.emit('K', byte(v))
	case v >= 0 && v < 65536:
		p.emit('M', byte(v), byte(v>>8))
	case v >= math.MinInt32 && v <= math.MaxInt32:
		p.frame = binary.LittleEndian.AppendUint32(append(p.frame, 'J'), uint32(v))
	case p.cpp: // torch::jit::Pickler always writes eight bytes
		p.frame = binary.LittleEndian.AppendUint64(append(p.frame, 0x8a, 8), uint64(v))
	default:
		magnitude := uint64(v)
		if v < 0 {
			magnitude = ^magnitude
		}
		n := bits.Len64(magnitude)/8 + 1
		p.emit(0x8a, byte(n))
		for i := range n {
			p.emit(byte(v >> min(63, 8*i)))
		}
	}
}

func (p *pickler) save(v any) {
	if p.protocol >= 4 && len(p.frame) >= frameTarget || len(p.frame) >= 1<<20 {
		p.commit()
	}
	switch v := v.(type) {
	case nil:
		p.emit('N')
	case bool:
		if v {
			p.emit(0x88)
		} else {
			p.emit(0x89)
		}
	case int:
		p.integer(int64(v))
	case int64:
		p.integer(v)
	case uint64:
		if v > math.MaxInt64 && !p.cpp {
			p.frame = append(binary.LittleEndian.AppendUint64(append(p.frame, 0x8a, 9), v), 0)
		} else {
			p.integer(int64(v))
		}
	case float64:
		p.frame = binary.BigEndian.AppendUint64(append(p.frame, 'G'), math.Float64bits(v))
	case string:
		p.str(v, nil)
	case *Str:
		p.str(v.text, &v.memo)
	case *Dict:
		p.dict(v)
	case *List:
		p.list(v)
	case *Tuple:
		if v.memo != 0 && !p.cpp {
			p.get(v.memo)
			return
		}
		p.save(v.items[0])
		p.save(v.items[1])
		p.emit(0x86)
		if !p.cpp {
			v.memo = p.put()
		}
	}
}

func (p *pickler) dict(d *Dict) {
	if d.memo != 0 {
		p.get(d.memo)
		return
	}
	p.emit('}')
	if !p.cpp {
		d.memo = p.put()
	}
	if p.cpp || len(d.pairs) > 2 {
		p.emit('(')
	}
	for _, v := range d.pairs {
		p.save(v)
	}
	switch {
	case p.cpp:
		p.emit('u')
		d.memo = p.put()
	case len(d.pairs) > 2:
		p.emit('u')
	case len(d.pairs) == 2:
		p.emit('s')
	}
}

func (p *pickler) list(l *List) {
	if l.memo != 0 {
		p.get(l.memo)
		return
	}
	n := l.len()
	p.emit(']')
	switch {
	case p.cpp:
		p.emit('(')
		for i := range n {
			p.save(l.at(i))
		}
		p.emit('e')
		if l.shared {
			l.memo = p.put()
		}
		return
	case n == 1:
		l.memo = p.put()
		p.save(l.at(0))
		p.emit('a')
		return
	}
	l.memo = p.put()
	for i := range n {
		if i%batchSize == 0 {
			p.emit('(')
		}
		p.save(l.at(i))
		if i%batchSize == batchSize-1 || i == n-1 {
			p.emit('e')
		}
	}
}
