// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"errors"
	"io"
)

const bufferSize = 256 << 10

// input is a window on the stream that can hold one opcode whole.
type input struct {
	r        io.Reader
	buf      []byte
	pos, end int
	base     int64 // offset of buf[0]
	eof      bool
}

func (in *input) offset() int64 { return in.base + int64(in.pos) }

// fill makes n bytes available from pos on, fewer only at the end of the input. The byte after the last is always there,
// so that operands can be loaded eight at a time.
func (in *input) fill(n int) error {
	if in.end-in.pos >= n || in.eof {
		return nil
	}
	if in.pos > 0 {
		copy(in.buf, in.buf[in.pos:in.end])
		in.base += int64(in.pos)
		in.end -= in.pos
		in.pos = 0
	}
	if n+longest > len(in.buf) {
		in.buf = append(in.buf, make([]byte, n+longest-len(in.buf))...)
	}
	for empty := 0; in.end < n; {
		got, err := in.r.Read(in.buf[in.end : len(in.buf)-longest])
		in.end += got
		switch {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF): // the latter from a compressed stream that was cut
			in.eof = true
			return nil
		case err != nil:
			return err
		case got == 0:
			if empty++; empty == 100 {
				return io.ErrNoProgress
			}
		default:
			empty = 0
		}
	}
	return nil
}
