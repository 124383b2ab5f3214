// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/exporter/sink"
)

// a place is a spool with a process table of its own.
type place struct {
	t    *testing.T
	path string
	proc string
	now  time.Time
	*Spool
}

func newPlace(t *testing.T) *place {
	t.Helper()
	p := &place{t: t, path: t.TempDir(), proc: t.TempDir(), now: time.Now()}
	p.write(filepath.Join(p.proc, "sys/kernel/random/boot_id"), "boot-1\n")
	var err error
	p.Spool, err = Open(p.path, Options{
		MaxDumpBytes: 1000, Poll: 10 * time.Millisecond,
		machine: &machine{proc: p.proc, host: "node-7"}, now: func() time.Time { return p.now },
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *place) write(path, text string) {
	p.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		p.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// folder makes a process folder with an identity and dumps.
func (p *place) folder(id sink.ProcessJSON, dumps ...string) string {
	p.t.Helper()
	name := fmt.Sprintf("%s-%d-%d", folderHost(id.Host), id.PID, id.StartTicks)
	text, err := json.Marshal(id)
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(filepath.Join(p.path, name, "process.json"), string(text))
	for _, d := range dumps {
		p.write(filepath.Join(p.path, name, d), "heap_v2/1\n")
	}
	return name
}

// stat puts a process into the table.
func (p *place) stat(pid int, state string, threads int, start uint64) {
	p.t.Helper()
	fields := make([]string, 50)
	for i := range fields {
		fields[i] = "0"
	}
	fields[0], fields[17], fields[19] = state, strconv.Itoa(threads), strconv.FormatUint(start, 10)
	p.write(filepath.Join(p.proc, strconv.Itoa(pid), "stat"), fmt.Sprintf("%d (a ) (odd) name) %s\n", pid, strings.Join(fields, " ")))
}

func (p *place) claim(name string) *Process {
	p.t.Helper()
	proc, err := p.Claim(name)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = proc.Release() })
	return proc
}

func node7(pid int, start uint64) sink.ProcessJSON {
	return sink.ProcessJSON{Schema: 1, Host: "node-7", PID: pid, StartTicks: start, BootID: "boot-1"}
}

func dumpNames(dumps []Dump) []string {
	var out []string
	for _, d := range dumps {
		out = append(out, d.Name)
	}
	return out
}

func wantError(t *testing.T, err error, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want one with %q", parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q: want %q in it", err, part)
		}
	}
}

func TestDumpsComeInOrderOfTheirSequenceNumbersWithGaps(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000010.interval.heap", "000002.exit.heap", "1000000.interval.heap", "999999.interval.heap", "000009.a-new_reason.heap")
	p.write(filepath.Join(p.path, name, ".000011.tmp"), "half")
	dumps, err := p.claim(name).Dumps()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"000002.exit.heap", "000009.a-new_reason.heap", "000010.interval.heap", "999999.interval.heap", "1000000.interval.heap"}
	if got := dumpNames(dumps); !slices.Equal(got, want) {
		t.Errorf("dumps %v, want %v", got, want)
	}
	if d := dumps[1]; d.Seq != 9 || d.Reason != "a-new_reason" || d.Size != 10 {
		t.Errorf("dump %+v", d)
	}
}

func TestHostileEntriesAreNamedAndCostNothingElse(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.interval.heap")
	in := func(entry string) string { return filepath.Join(p.path, name, entry) }
	secret := filepath.Join(t.TempDir(), "secret")
	p.write(secret, "heap_v2/1\n")
	for _, err := range []error{
		os.Symlink(secret, in("000002.interval.heap")),
		unix.Mkfifo(in("000003.interval.heap"), 0o600),
		os.Mkdir(in("000004.interval.heap"), 0o700),
		os.WriteFile(in("1.interval.heap"), nil, 0o600),
		os.WriteFile(in("000005.In terval.heap"), nil, 0o600),
		os.WriteFile(in("99999999999999999999.interval.heap"), nil, 0o600),
		os.WriteFile(in("core\n\x1b[2J"), nil, 0o600),
		os.Symlink(filepath.Dir(secret), filepath.Join(p.path, "node_7-43-8")),
		os.WriteFile(filepath.Join(p.path, "node_7-44-9"), nil, 0o600),
		os.Mkdir(filepath.Join(p.path, "node_7-0-9"), 0o700),
		os.Mkdir(filepath.Join(p.path, "node_7-99999999-9"), 0o700),
		os.Mkdir(filepath.Join(p.path, "..-1-1"), 0o700),
		os.Mkdir(filepath.Join(p.path, strings.Repeat("h", 65)+"-1-1"), 0o700),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	folders, err := p.Processes()
	if !slices.Equal(folders, []string{name}) {
		t.Errorf("folders %v, want %v", folders, name)
	}
	wantError(t, err, "node_7-43-8: left alone: not a folder", "node_7-44-9: left alone: not a folder", "node_7-0-9", "node_7-99999999-9")
	if n := len(strings.Split(err.Error(), "\n")); n != 6 {
		t.Errorf("%d complaints, want 6:\n%v", n, err)
	}
	if _, err := p.Claim("node_7-43-8"); err == nil {
		t.Error("a link was claimed as a folder")
	}
	if _, err := p.Claim("../" + name); err == nil {
		t.Error("a path was claimed as a folder")
	}
	proc := p.claim(name)
	dumps, err := proc.Dumps()
	if got := dumpNames(dumps); !slices.Equal(got, []string{"000001.interval.heap"}) {
		t.Errorf("dumps %v", got)
	}
	wantError(t, err, "000002.interval.heap: left alone: not a regular file", "000003", "000004", "1.interval.heap", "000005", "99999999999999999999")
	// A dump that is swapped for a link after it was listed is not followed, nor is a pipe waited for.
	for _, entry := range []string{"000002.interval.heap", "000003.interval.heap"} {
		if f, err := proc.Open(Dump{Name: entry}); err == nil {
			f.Close()
			t.Errorf("%s was opened", entry)
		}
	}
}

func TestALargeDumpIsRefused(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7))
	p.write(filepath.Join(p.path, name, "000001.interval.heap"), strings.Repeat("x", 1001))
	proc := p.claim(name)
	_, err := proc.Open(Dump{Name: "000001.interval.heap"})
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("error %v, want ErrTooLarge", err)
	}
	p.write(filepath.Join(p.path, name, "000002.interval.heap"), strings.Repeat("x", 1000))
	f, err := proc.Open(Dump{Name: "000002.interval.heap"})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if b, err := io.ReadAll(f); len(b) != 1000 || err != nil {
		t.Errorf("read %d bytes, %v", len(b), err)
	}
}

func TestAClaimExcludesOthersUntilItIsReleased(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7))
	first, err := p.Claim(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(name); !errors.Is(err, ErrClaimed) {
		t.Errorf("second claim: %v, want ErrClaimed", err)
	}
	if err := first.Release(); err != nil {
		t.Fatal(err)
	}
	p.claim(name)
}

func TestAcknowledgedDumpsAreRemovedOrKept(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.interval.heap", "000002.interval.heap", "000003.interval.heap")
	proc := p.claim(name)
	dumps, _ := proc.Dumps()
	if err := errors.Join(proc.Acknowledge(dumps[0], false), proc.Acknowledge(dumps[1], true), proc.Reject(dumps[2], "no heap dump")); err != nil {
		t.Fatal(err)
	}
	left, err := proc.Dumps()
	if len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	for path, want := range map[string]string{
		"delivered/000002.interval.heap":          "heap_v2/1\n",
		"000003.interval.heap.rejected":           "heap_v2/1\n",
		"000003.interval.heap.rejected.txt":       "no heap dump\n",
		"000001.interval.heap":                    "",
		"delivered/000001.interval.heap":          "",
		"delivered/000003.interval.heap":          "",
		"delivered/000003.interval.heap.rejected": "",
	} {
		got, err := os.ReadFile(filepath.Join(p.path, name, path))
		if string(got) != want || (want != "") != (err == nil) {
			t.Errorf("%s: %q, %v; want %q", path, got, err, want)
		}
	}
	if err := proc.Acknowledge(dumps[0], false); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("acknowledging twice: %v", err)
	}
	if removed, err := proc.RemoveIfDrained(); removed || err != nil {
		t.Errorf("a folder with kept files: removed %v, %v", removed, err)
	}
}

func TestAKeptDumpDoesNotLeaveTheFolderThroughALink(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.interval.heap")
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(p.path, name, "delivered")); err != nil {
		t.Fatal(err)
	}
	proc := p.claim(name)
	dumps, _ := proc.Dumps()
	if err := proc.Acknowledge(dumps[0], true); err == nil {
		t.Error("kept through a link")
	}
	if entries, _ := os.ReadDir(elsewhere); len(entries) > 0 {
		t.Errorf("moved out of the spool: %v", entries)
	}
}

func TestState(t *testing.T) {
	for _, c := range []struct {
		name string
		id   sink.ProcessJSON
		stat func(p *place)
		want State
	}{
		{"running", node7(42, 7), func(p *place) { p.stat(42, "S", 3, 7) }, Alive},
		{"gone", node7(42, 7), func(*place) {}, Dead},
		{"its pid was used again", node7(42, 7), func(p *place) { p.stat(42, "S", 1, 8) }, Dead},
		{"its pid was used again in another boot", sink.ProcessJSON{Host: "node-7", PID: 42, StartTicks: 7, BootID: "boot-0"}, func(p *place) { p.stat(42, "S", 1, 7) }, Dead},
		{"no boot id", sink.ProcessJSON{Host: "node-7", PID: 42, StartTicks: 7}, func(p *place) { p.stat(42, "R", 1, 7) }, Alive},
		{"zombie", node7(42, 7), func(p *place) { p.stat(42, "Z", 1, 7) }, Dead},
		{"zombie leader of living threads", node7(42, 7), func(p *place) { p.stat(42, "Z", 2, 7) }, Alive},
		{"on another host", sink.ProcessJSON{Host: "node-8", PID: 42, StartTicks: 7, BootID: "boot-9"}, func(*place) {}, Unknown},
		{"unreadable stat", node7(42, 7), func(p *place) { p.write(filepath.Join(p.proc, "42", "stat"), "42 (x) S 1") }, Unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			c.stat(p)
			name := p.folder(c.id)
			if got := p.claim(name).State(); got != c.want {
				t.Errorf("state %v, want %v", got, c.want)
			}
			if alive := p.Alive(); (len(alive) == 1) != (c.want == Alive) {
				t.Errorf("alive: %v", alive)
			}
		})
	}
}

func TestOurOwnProcessIsAlive(t *testing.T) {
	start, err := StartTicks(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	m := thisMachine()
	if got := m.state(m.host, os.Getpid(), start, m.bootID(), m.pidNamespace()); got != Alive {
		t.Errorf("state %v", got)
	}
	if got := m.state(m.host, os.Getpid(), start+1, m.bootID(), m.pidNamespace()); got != Dead {
		t.Errorf("state with another start %v", got)
	}
}

func TestADrainedFolderOfADeadProcessIsRemoved(t *testing.T) {
	for _, c := range []struct {
		name    string
		prepare func(p *place, name string)
		want    bool
	}{
		{"dead", func(*place, string) {}, true},
		{"dead, with an unfinished dump", func(p *place, name string) { p.write(filepath.Join(p.path, name, ".000002.tmp"), "half") }, true},
		{"dead, without process.json", func(p *place, name string) { os.Remove(filepath.Join(p.path, name, "process.json")) }, true},
		{"alive", func(p *place, _ string) { p.stat(42, "S", 1, 7) }, false},
		{"a dump is left", func(p *place, name string) { p.write(filepath.Join(p.path, name, "000002.exit.heap"), "x") }, false},
		{"a stranger's file", func(p *place, name string) { p.write(filepath.Join(p.path, name, "notes.txt"), "x") }, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			name := p.folder(node7(42, 7))
			c.prepare(p, name)
			proc := p.claim(name)
			before, _ := os.ReadDir(filepath.Join(p.path, name))
			removed, err := proc.RemoveIfDrained()
			if removed != c.want || err != nil {
				t.Fatalf("removed %v, %v; want %v", removed, err, c.want)
			}
			after, err := os.ReadDir(filepath.Join(p.path, name))
			if os.IsNotExist(err) != c.want {
				t.Errorf("folder: %v", err)
			}
			if !c.want && len(after) != len(before) {
				t.Errorf("files %v, before %v", after, before)
			}
		})
	}
}

func TestAFolderFromAnotherHostIsRemovedWhenStale(t *testing.T) {
	p := newPlace(t)
	name := p.folder(sink.ProcessJSON{Host: "node-8", PID: 42, StartTicks: 7, BootID: "boot-9"})
	proc := p.claim(name)
	if removed, err := proc.RemoveIfDrained(); removed || err != nil {
		t.Fatalf("fresh: removed %v, %v", removed, err)
	}
	p.now = p.now.Add(25 * time.Hour)
	if removed, err := proc.RemoveIfDrained(); !removed || err != nil {
		t.Fatalf("stale: removed %v, %v", removed, err)
	}
}

func TestAFaultyIdentityIsFilledInFromTheFolder(t *testing.T) {
	for _, c := range []struct{ name, text, errors string }{
		{"huge", `{"host": "` + strings.Repeat("x", sink.MaxProcessJSON) + `"}`, "more than the 4194304 allowed"},
		{"missing", "", "no such file"},
		{"of another process", `{"host": "node-7", "pid": 43, "start_ticks": 7}`, `keys "pid" and "start_ticks": the folder's name has 42 and 7, the file has 43 and 7`},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t)
			name := p.folder(node7(42, 7))
			path := filepath.Join(p.path, name, "process.json")
			if c.text == "" {
				os.Remove(path)
			} else {
				p.write(path, c.text)
			}
			id, err := p.claim(name).Identity()
			wantError(t, err, path, c.errors)
			if id.PID != 42 || id.StartTicks != 7 || (id.Host != "node_7" && id.Host != "node-7") {
				t.Errorf("identity %+v", id)
			}
		})
	}
}

func TestOpenWantsAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, file + "-missing"} {
		_, err := Open(path, Options{})
		wantError(t, err, "opening spool "+path)
	}
}

// changed waits until a condition holds, looking after every change that is told.
func changed(t *testing.T, changes <-chan struct{}, what string, done func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !done() {
		select {
		case <-changes:
		case <-deadline:
			t.Fatalf("not told that %s", what)
		}
	}
}

func TestChangesTellOfFoldersAndDumpsThatComeLater(t *testing.T) {
	p := newPlace(t)
	// No poll within the test: what is told comes from file events.
	s, err := Open(p.path, Options{Poll: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	changes := s.Changes(ctx)
	<-changes // the first look
	name := p.folder(node7(42, 7), "000001.interval.heap")
	has := func(n int) func() bool {
		return func() bool {
			found, err := filepath.Glob(filepath.Join(p.path, name, "*.heap"))
			return err == nil && len(found) >= n
		}
	}
	changed(t, changes, "a folder came", has(1))
	for i := 2; i < 5; i++ {
		making := filepath.Join(p.path, name, fmt.Sprintf(".%06d.tmp", i))
		p.write(making, "heap_v2/1\n")
		if err := os.Rename(making, filepath.Join(p.path, name, fmt.Sprintf("%06d.interval.heap", i))); err != nil {
			t.Fatal(err)
		}
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			t.Fatalf("not told of dump %d", i)
		}
	}
	cancel()
	for range changes {
	}
}

func TestChangesAreToldWithoutFileEvents(t *testing.T) {
	p := newPlace(t)
	changes := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(context.Background())
	go p.watch(ctx, nil, changes)
	for range 3 {
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			t.Fatal("nothing told")
		}
	}
	cancel()
	for range changes {
	}
}
