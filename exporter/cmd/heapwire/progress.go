// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// slow is how long a file must take before a bar says how far it is.
const slow = time.Second

// progress shows how far large files are. Nil shows nothing.
type progress struct{ w io.Writer }

// newProgress shows bars where w is a terminal, and nothing elsewhere.
func newProgress(w io.Writer) *progress {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		return &progress{w}
	}
	return nil
}

// watch shows how much of r, which has size bytes, was read. Close takes the bar off the terminal.
func (p *progress) watch(path string, r io.Reader, size int64) *watched {
	w := &watched{r: r, began: time.Now()}
	if p != nil && size > 0 {
		w.w = p.w
		w.bar = progressbar.NewOptions64(size,
			progressbar.OptionSetWriter(w.pen()), progressbar.OptionSetDescription(oneLine(filepath.Base(path))),
			progressbar.OptionShowBytes(true), progressbar.OptionShowCount(), progressbar.OptionUseIECUnits(true),
			progressbar.OptionSetWidth(24), progressbar.OptionThrottle(100*time.Millisecond))
	}
	return w
}

type watched struct {
	r     io.Reader
	w     io.Writer
	began time.Time
	n     int64
	bar   *progressbar.ProgressBar // nil: none
	drawn bool
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.n += int64(n)
	if w.bar != nil {
		_ = w.bar.Set64(w.n)
	}
	return n, err
}

// pen keeps the bar off the terminal for as long as the file may yet be quick: its rate counts from the first byte.
func (w *watched) pen() io.Writer { return (*pen)(w) }

type pen watched

func (p *pen) Write(b []byte) (int, error) {
	if time.Since(p.began) < slow {
		return len(b), nil
	}
	p.drawn = true
	return p.w.Write(b)
}

// Close takes the bar away.
func (w *watched) Close() {
	if w.drawn {
		_ = w.bar.Clear()
	}
	w.bar = nil
}
