// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	journalFile  = ".delivery"
	maxJournal   = 16 << 20 // a larger one is not ours
	rewriteAfter = 256 << 10
	lineEnd      = " .\n"
)

// journal is what the readers of a process folder remember beyond their own lives, in the file .delivery: one line a
// fact, appended in one write. A line without its end, as a killed reader or a full disk leaves it, says nothing.
//
//	s <dump> <sink> .     the sink is done with the dump
//	n <text> .            a note, the last one counts
type journal struct {
	dir  *os.File
	file string

	mu      sync.Mutex
	settled map[string]map[string]bool // dump → sinks
	note    string
	size    int
	most    int  // rewritten when larger
	torn    bool // the last line has no end

	exists func(dump string) bool // false for dumps that need no memory any more
}

func readJournal(dir *os.File, file string, exists func(dump string) bool) (*journal, error) {
	j := &journal{dir: dir, file: file, settled: map[string]map[string]bool{}, most: rewriteAfter, exists: exists}
	text, err := readRegular(dir, file, maxJournal)
	if errors.Is(err, os.ErrNotExist) {
		return j, nil
	}
	if err != nil {
		return j, err
	}
	j.size = len(text)
	j.torn = len(text) > 0 && text[len(text)-1] != '\n'
	for line := range strings.Lines(string(text)) {
		fact, whole := strings.CutSuffix(line, lineEnd)
		if !whole {
			continue
		}
		switch kind, rest, _ := strings.Cut(fact, " "); kind {
		case "s":
			if dump, sink, ok := strings.Cut(rest, " "); ok {
				j.settle(dump, sink)
			}
		case "n":
			j.note = rest
		}
	}
	return j, nil
}

func (j *journal) settle(dump, sink string) {
	if j.settled[dump] == nil {
		j.settled[dump] = map[string]bool{}
	}
	j.settled[dump][sink] = true
}

// add appends a line. It is called with j.mu held.
func (j *journal) add(fact string) error {
	if j.size > j.most {
		return j.rewrite()
	}
	line := fact + lineEnd
	if j.torn {
		line = "\n" + line
	}
	f, err := create(j.dir, j.file, unix.O_WRONLY|unix.O_APPEND)
	if err != nil {
		return err
	}
	n, err := f.WriteString(line)
	j.size += n
	if n > 0 {
		j.torn = n < len(line)
	}
	return errors.Join(err, f.Close())
}

// rewrite leaves out what is no longer needed. It is called with j.mu held.
func (j *journal) rewrite() error {
	var b bytes.Buffer
	for dump, sinks := range j.settled {
		whole, _, part := strings.Cut(dump, partMark)
		if !j.exists(whole) || part && j.settled[whole][everySink] {
			delete(j.settled, dump)
			continue
		}
		for sink := range sinks {
			b.WriteString("s " + dump + " " + sink + lineEnd)
		}
	}
	if j.note != "" {
		b.WriteString("n " + j.note + lineEnd)
	}
	making := j.file + ".tmp"
	f, err := create(j.dir, making, unix.O_WRONLY|unix.O_TRUNC)
	if err != nil {
		return err
	}
	_, err = f.Write(b.Bytes())
	if err = errors.Join(err, f.Close()); err != nil {
		_ = remove(j.dir, making, 0)
		return err
	}
	if err := rename(j.dir, making, j.dir, j.file); err != nil {
		return err
	}
	j.size, j.torn = b.Len(), false
	j.most = max(rewriteAfter, 2*j.size)
	return nil
}

func (j *journal) has(dump, sink string) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.settled[dump][sink]
}

func (j *journal) done(dump, sink string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if strings.ContainsAny(dump+sink, " \n") {
		return fmt.Errorf("a blank in %q or %q", dump, sink)
	}
	if j.settled[dump][sink] {
		return nil
	}
	j.settle(dump, sink)
	return j.add("s " + dump + " " + sink)
}

func (j *journal) text() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.note
}

func (j *journal) setNote(text string) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.note = strings.ReplaceAll(text, "\n", " ")
	return j.add("n " + j.note)
}

// Settled says whether a sink was done with a dump already, in this reader's life or before.
func (p *Process) Settled(dump, sink string) bool { return p.journal.has(dump, sink) }

// Part names a part of a dump for Settle and Settled, where more than one thing is sent of it.
func Part(dump, part string) string { return dump + partMark + part }

const partMark = "#"

// Settle notes on disk that a sink is done with a dump, so that no later reader offers it again. dump may also be a Part of
// one, or another word that is no dump's name, for what else is delivered of a process. Neither may hold a blank.
func (p *Process) Settle(dump, sink string) error { return p.noted(p.journal.done(dump, sink)) }

// Note is the text that SetNote kept last, in this reader's life or before; "" without one.
func (p *Process) Note() string { return p.journal.text() }

// SetNote keeps a text of one line for the next reader.
func (p *Process) SetNote(text string) error { return p.noted(p.journal.setNote(text)) }

func dumpIn(dir *os.File) func(dump string) bool {
	return func(dump string) bool {
		var st unix.Stat_t
		return !dumpName.MatchString(dump) || unix.Fstatat(int(dir.Fd()), dump, &st, unix.AT_SYMLINK_NOFOLLOW) == nil
	}
}

func (p *Process) noted(err error) error {
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Join(p.path, journalFile), err)
	}
	return nil
}
