// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"errors"
	"io"
)

// maxLine bounds what is kept of one line. jemalloc's longest line is a stack of 256 frames, under 5 KiB.
const maxLine = 1 << 20

// lineReader cuts an input into lines in bounded memory. The line is valid until the next call of next.
type lineReader struct {
	r          io.Reader
	buf        []byte
	start, end int
	base       int64 // offset in the input of buf[start]
	err        error // what ended the input, once it has ended
	skip       bool  // the rest of an over-long line is still to be thrown away

	line   []byte // without the newline
	number int    // of line, from 1
	offset int64  // of line's first byte
	whole  bool   // a newline ended it, so nothing of it is missing
	long   bool   // it was longer than maxLine, the rest is gone
}

func newLineReader(r io.Reader) *lineReader {
	return &lineReader{r: r, buf: make([]byte, 64<<10), number: 0, whole: true}
}

// next moves to the next line. At the end of the input, or when reading fails, it returns false and err says why.
func (l *lineReader) next() bool {
	if l.skip && !l.discard() {
		return false
	}
	scanned := l.start
	for {
		if i := bytes.IndexByte(l.buf[scanned:l.end], '\n'); i >= 0 {
			end := scanned + i
			l.take(end, true, false)
			l.start++
			l.base++
			return true
		}
		if l.end-l.start >= maxLine {
			l.take(l.start+maxLine, false, true)
			l.skip = true
			return true
		}
		scanned = l.end - l.start
		if !l.fill() {
			if l.start == l.end {
				return false
			}
			l.take(l.end, false, false)
			return true
		}
		scanned += l.start
	}
}

func (l *lineReader) take(end int, whole, long bool) {
	l.line = l.buf[l.start:end]
	l.offset = l.base
	l.number++
	l.whole, l.long = whole, long
	l.base += int64(end - l.start)
	l.start = end
}

// discard throws away what is left of an over-long line.
func (l *lineReader) discard() bool {
	for {
		if i := bytes.IndexByte(l.buf[l.start:l.end], '\n'); i >= 0 {
			l.base += int64(i + 1)
			l.start += i + 1
			l.skip = false
			return true
		}
		l.base += int64(l.end - l.start)
		l.start, l.end = 0, 0
		if !l.fill() {
			l.whole = false
			return false
		}
	}
}

// fill reads more behind what is there, moving it to the front and growing the buffer as far as maxLine asks for.
func (l *lineReader) fill() bool {
	if l.err != nil {
		return false
	}
	if l.start > 0 {
		copy(l.buf, l.buf[l.start:l.end])
		l.end -= l.start
		l.start = 0
	}
	if l.end == len(l.buf) {
		grown := make([]byte, min(2*len(l.buf), maxLine+64<<10))
		copy(grown, l.buf[:l.end])
		l.buf = grown
	}
	for range 100 {
		n, err := l.r.Read(l.buf[l.end:])
		l.end += n
		if err != nil {
			l.err = err
		}
		if n > 0 {
			return true
		}
		if err != nil {
			return false
		}
	}
	l.err = io.ErrNoProgress
	return false
}

// failure is the error that ended the input early, nil for a plain or unexpected end: that is a cut, not a failure.
func (l *lineReader) failure() error {
	if errors.Is(l.err, io.EOF) || errors.Is(l.err, io.ErrUnexpectedEOF) {
		return nil
	}
	return l.err
}

// trimRight and trimLeft take blanks off a line: some copies of dumps have them at its end (jemalloc#2561), or CRLF.
// They run twice a line; the general functions of package bytes cost a tenth of the parser's time.
func trimRight(b []byte) []byte {
	for len(b) > 0 && (blank(b[len(b)-1]) || b[len(b)-1] == '\r') {
		b = b[:len(b)-1]
	}
	return b
}

func trimLeft(b []byte) []byte {
	for len(b) > 0 && blank(b[0]) {
		b = b[1:]
	}
	return b
}

func blank(c byte) bool { return c == ' ' || c == '\t' }
