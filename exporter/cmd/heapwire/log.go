// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
)

// lines is a slog handler that writes "heapwire: message (key value, …)", one line a record, as a command line tool does.
type lines struct {
	mu    *sync.Mutex
	w     io.Writer
	level slog.Level
	attrs []slog.Attr
}

func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	return slog.New(&lines{mu: &sync.Mutex{}, w: w, level: level})
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("heapwire: ")
	b.WriteString(oneLine(r.Message))
	var pairs []string
	add := func(a slog.Attr) bool {
		pairs = append(pairs, a.Key+" "+oneLine(fmt.Sprint(a.Value.Resolve().Any())))
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	if len(pairs) > 0 {
		b.WriteString(" (" + strings.Join(pairs, ", ") + ")")
	}
	b.WriteByte('\n')
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.w, b.String())
	return err
}

func (l *lines) WithAttrs(attrs []slog.Attr) slog.Handler {
	with := *l
	with.attrs = append(append([]slog.Attr(nil), l.attrs...), attrs...)
	return &with
}

func (l *lines) WithGroup(string) slog.Handler { return l }

// oneLine keeps what others wrote, such as file names and a server's answer, from moving the cursor of a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return ' '
		}
		return r
	}, s)
}
