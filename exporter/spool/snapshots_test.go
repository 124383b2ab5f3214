// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// folder is a folder of snapshots with a clock of its own.
func folder(t *testing.T, now *time.Time) *Folder {
	t.Helper()
	f, err := OpenFolder(t.TempDir(), FolderOptions{MaxBytes: 1000, now: func() time.Time { return *now }})
	if err == nil {
		err = f.Claim()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Release() })
	return f
}

func TestAFileIsTakenWhenItIsWholeAndQuiet(t *testing.T) {
	now := time.Now()
	f := folder(t, &now)
	path := filepath.Join(f.Path(), "a.pickle")
	write := func(text string, modified time.Time) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, modified, modified)); err != nil {
			t.Fatal(err)
		}
	}
	listed := func() int {
		t.Helper()
		dumps, err := f.Dumps()
		if err != nil {
			t.Fatal(err)
		}
		return len(dumps)
	}
	const whole = "\x80\x04N."
	for _, c := range []struct {
		name, text string
		age        time.Duration
		want       int
	}{
		{"fresh", whole, 0, 0},
		{"quiet", whole, quiet, 1},
		{"quiet, without an end", "\x80\x04N", quiet, 0},
		{"quiet, not a pickle", "PK..", quiet, 0},
		{"quiet, empty", "", quiet, 0},
		// The file server's clock is ahead of ours.
		{"of the future", whole, -time.Hour, 0},
	} {
		write(c.text, now.Add(-c.age))
		if got := listed(); got != c.want {
			t.Errorf("%s: %d listed, want %d", c.name, got, c.want)
		}
	}
	now = now.Add(quiet)
	if listed() != 1 {
		t.Error("a file of the future is never taken, though it does not change")
	}
	dumps, _ := f.Dumps()
	f.Incomplete(dumps[0])
	if listed() != 0 {
		t.Error("what was not complete is listed again unchanged")
	}
	write(whole, now.Add(-time.Minute))
	if listed() != 1 {
		t.Error("it has changed, and is not listed")
	}
	// When nobody writes any more, a fresh file is complete, or never will be.
	write(whole, now)
	f.NoWriters()
	if listed() != 1 {
		t.Error("nobody writes, and the file is not listed")
	}
	write("\x80\x04N", now)
	dumps, err := f.Dumps()
	if len(dumps) != 0 {
		t.Error("half a file is listed")
	}
	wantError(t, err, path+": left alone: it ends before its end")
}

func TestOpeningASnapshotOfOthers(t *testing.T) {
	now := time.Now()
	f := folder(t, &now)
	path := filepath.Join(f.Path(), "a.pickle")
	if err := os.WriteFile(path, []byte("\x80\x04N."), 0o644); err != nil {
		t.Fatal(err)
	}
	now = now.Add(time.Minute)
	dumps, err := f.Dumps()
	if err != nil || len(dumps) != 1 {
		t.Fatal(dumps, err)
	}
	d := dumps[0]
	r, err := f.Open(d)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); string(text) != "\x80\x04N." || err != nil {
		t.Errorf("%q, %v", text, err)
	}
	r.Close()
	large := d
	large.Size = 1001
	if _, err := f.Open(large); !errors.Is(err, ErrTooLarge) {
		t.Errorf("1001 bytes: %v", err)
	}
	if err := os.WriteFile(path, []byte("\x80\x04NN."), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = f.Open(d)
	wantError(t, err, path, "it has changed since it was listed")
	if err := errors.Join(os.Remove(path), os.Symlink("/etc/hostname", path)); err != nil {
		t.Fatal(err)
	}
	_, err = f.Open(d)
	wantError(t, err, path, "too many levels of symbolic links")
}

func TestTheJournalOfAFolderStaysSmall(t *testing.T) {
	now := time.Now().Add(time.Minute)
	f := folder(t, &now)
	put := func(i int) Dump {
		t.Helper()
		path := filepath.Join(f.Path(), fmt.Sprintf("%d.pickle", i))
		if err := os.WriteFile(path, []byte("\x80\x04N."), 0o644); err != nil {
			t.Fatal(err)
		}
		dumps, err := f.Dumps()
		if err != nil || len(dumps) != 1 {
			t.Fatal(dumps, err)
		}
		return dumps[0]
	}
	const rounds = 120
	var last Dump
	for i := range rounds {
		last = put(i)
		for part := range 50 {
			if err := f.Settle(Part(last.Name, fmt.Sprintf("view%d@cuda:0", part)), "otlp:12345678"); err != nil {
				t.Fatal(err)
			}
		}
		if i == rounds-1 {
			break
		}
		if err := f.Acknowledge(last, false); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(f.Path(), FolderJournal))
	if err != nil || info.Size() > rewriteAfter+100<<10 || info.Size() < 10<<10 {
		t.Fatalf("%d bytes, %v", info.Size(), err)
	}
	if err := f.Release(); err != nil {
		t.Fatal(err)
	}
	if err := f.Claim(); err != nil {
		t.Fatal(err)
	}
	if dumps, err := f.Dumps(); err != nil || len(dumps) != 1 || dumps[0] != last || !f.Settled(Part(last.Name, "view49@cuda:0"), "otlp:12345678") {
		t.Errorf("after rewriting: %+v, %v", dumps, err)
	}
}
