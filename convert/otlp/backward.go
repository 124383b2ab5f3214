// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/binary"
	"math/bits"
)

// backward writes protobuf from the end to the front: the length of a message stands before it, and is known when it has been
// written. So fields are written in falling order of their numbers, the last row of a table first.
type backward struct {
	buf []byte
	pos int // of the first byte that is written
}

func newBackward(size int) *backward { return &backward{make([]byte, size), size} }

func (w *backward) bytes() []byte { return w.buf[w.pos:] }

// written is how many bytes there are.
func (w *backward) written() int { return len(w.buf) - w.pos }

// room makes sure that n bytes more fit.
func (w *backward) room(n int) {
	if w.pos >= n {
		return
	}
	grown := make([]byte, 2*len(w.buf)+n)
	pos := len(grown) - w.written()
	copy(grown[pos:], w.bytes())
	w.buf, w.pos = grown, pos
}

const (
	wireVarint  = 0
	wireFixed64 = 1
	wireBytes   = 2
)

// tag is of one byte: there is no field above 15.
func (w *backward) tag(field, wire byte) {
	w.pos--
	w.buf[w.pos] = field<<3 | wire
}

func (w *backward) varint(v uint64) {
	n := (bits.Len64(v|1) + 6) / 7
	w.pos -= n
	binary.PutUvarint(w.buf[w.pos:], v)
}

// number writes a field that is absent when it is 0.
func (w *backward) number(field byte, v uint64) {
	if v != 0 {
		w.numberAlways(field, v)
	}
}

func (w *backward) numberAlways(field byte, v uint64) {
	w.room(11)
	w.varint(v)
	w.tag(field, wireVarint)
}

func (w *backward) fixed64(field byte, v uint64) {
	w.room(9)
	w.pos -= 8
	binary.LittleEndian.PutUint64(w.buf[w.pos:], v)
	w.tag(field, wireFixed64)
}

// text writes a field of a string or bytes.
func (w *backward) text(field byte, s string) {
	w.room(len(s) + 11)
	w.pos -= len(s)
	copy(w.buf[w.pos:], s)
	w.varint(uint64(len(s)))
	w.tag(field, wireBytes)
}

// message makes a message of what has been written since there were so many bytes.
func (w *backward) message(field byte, since int) {
	w.room(11)
	w.varint(uint64(w.written() - since))
	w.tag(field, wireBytes)
}

// packed writes a list of numbers that are not negative; an empty one is absent.
func (w *backward) packed(field byte, list []int32) {
	if len(list) == 0 {
		return
	}
	w.room(5*len(list) + 11)
	since := w.written()
	buf, pos := w.buf, w.pos
	for i := len(list) - 1; i >= 0; i-- {
		switch v := uint32(list[i]); {
		case v < 1<<7:
			pos--
			buf[pos] = byte(v)
		case v < 1<<14:
			pos -= 2
			buf[pos], buf[pos+1] = byte(v)|0x80, byte(v>>7)
		case v < 1<<21:
			pos -= 3
			buf[pos], buf[pos+1], buf[pos+2] = byte(v)|0x80, byte(v>>7)|0x80, byte(v>>14)
		default:
			pos -= (bits.Len32(v) + 6) / 7
			binary.PutUvarint(buf[pos:], uint64(v))
		}
	}
	w.pos = pos
	w.message(field, since)
}
