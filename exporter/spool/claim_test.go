// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/exporter/sink"
)

const claimant = "HEAPWIRE_TEST_CLAIM"

// TestMain lets the test program be the other reader: it claims the folder that the variable names and waits.
func TestMain(m *testing.M) {
	if path := os.Getenv(claimant); path != "" {
		s, err := Open(filepath.Dir(path), Options{})
		if err == nil {
			_, err = s.Claim(filepath.Base(path))
		}
		fmt.Println("claimed", err)
		select {}
	}
	os.Exit(m.Run())
}

func TestTheFolderOfADeadClaimantIsTakenOver(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.exit.heap")
	other := exec.Command(os.Args[0])
	other.Env = append(os.Environ(), claimant+"="+filepath.Join(p.path, name))
	out, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = other.Process.Kill() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "claimed <nil>\n" {
		t.Fatalf("the other reader says %q, %v", line, err)
	}
	if _, err := p.Claim(name); !errors.Is(err, ErrClaimed) {
		t.Fatalf("claim beside a living claimant: %v", err)
	}
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait()
	if dumps, err := p.claim(name).Dumps(); len(dumps) != 1 || err != nil {
		t.Errorf("dumps %v, %v", dumps, err)
	}
}

// withoutLocks makes the spool's file system one that locks nothing, as flock(2) says of NFS and folders.
func (p *place) withoutLocks() *place {
	p.opts.flock = func(int, int) error { return unix.EBADF }
	return p
}

// ourselves puts this process into the table that the spool judges by.
func (p *place) ourselves(start uint64) { p.stat(os.Getpid(), "S", 1, start) }

func TestLockFilesExcludeOthers(t *testing.T) {
	p := newPlace(t).withoutLocks()
	p.ourselves(5)
	name := p.folder(node7(42, 7))
	first, err := p.Claim(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(name); !errors.Is(err, ErrClaimed) {
		t.Errorf("second claim: %v", err)
	}
	if err := errors.Join(first.Refresh(), first.Release()); err != nil {
		t.Fatal(err)
	}
	entries, _ := os.ReadDir(filepath.Join(p.path, name))
	if len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
	p.claim(name)
}

func TestAStaleLockFileIsBroken(t *testing.T) {
	long, short := -3*time.Minute, -time.Second
	for _, c := range []struct {
		name, holder string
		touched      time.Duration
		want         error
	}{
		{"its holder is dead", "node_7 77 5 boot-1\n", short, nil},
		{"its holder's pid was used again", "node_7 42 6 boot-1\n", short, nil},
		{"its holder lives and was not heard of", "node_7 42 7 boot-1\n", long, ErrClaimed},
		{"another host's, touched", "node_8 77 5 boot-9\n", short, ErrClaimed},
		{"another host's, not touched", "node_8 77 5 boot-9\n", long, nil},
		{"half written, touched", "node_7 7", short, ErrClaimed},
		{"half written, not touched", "node_7 7", long, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPlace(t).withoutLocks()
			p.ourselves(5)
			p.stat(42, "S", 1, 7)
			name := p.folder(sink.ProcessJSON{Host: "node-7", PID: 43, StartTicks: 7})
			path := filepath.Join(p.path, name, ".claim")
			p.write(path, c.holder)
			when := time.Now().Add(c.touched)
			if err := os.Chtimes(path, when, when); err != nil {
				t.Fatal(err)
			}
			proc, err := p.Claim(name)
			if !errors.Is(err, c.want) {
				t.Fatalf("claim: %v, want %v", err, c.want)
			}
			text, err := os.ReadFile(path)
			if mine := fmt.Sprintf("node_7 %d 5 boot-1\n", os.Getpid()); err != nil || (string(text) == mine) != (c.want == nil) {
				t.Errorf("lock file %q, %v", text, err)
			}
			if proc != nil {
				if err := proc.Release(); err != nil {
					t.Error(err)
				}
			}
			entries, _ := filepath.Glob(filepath.Join(p.path, name, ".claim.*"))
			if len(entries) > 0 {
				t.Errorf("left: %v", entries)
			}
		})
	}
}

func TestALostLockFileIsNoticed(t *testing.T) {
	p := newPlace(t).withoutLocks()
	p.ourselves(5)
	name := p.folder(node7(42, 7))
	proc, err := p.Claim(name)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(p.path, name, ".claim")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	p.write(path, "node_8 1 1 boot-9\n")
	if err := proc.Refresh(); !errors.Is(err, ErrClaimed) {
		t.Errorf("refresh: %v", err)
	}
	if err := proc.Release(); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(path); string(text) != "node_8 1 1 boot-9\n" {
		t.Errorf("another reader's lock file was removed: %q", text)
	}
}

func TestALockFileThatIsALinkIsRefused(t *testing.T) {
	p := newPlace(t).withoutLocks()
	p.ourselves(5)
	name := p.folder(node7(42, 7))
	if err := os.Symlink(filepath.Join(t.TempDir(), "target"), filepath.Join(p.path, name, ".claim")); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Claim(name); err == nil {
		t.Error("claimed")
	}
}

func TestAReadOnlyFolderCanBeClaimed(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.exit.heap")
	if err := os.Chmod(filepath.Join(p.path, name), 0o500); err != nil {
		t.Fatal(err)
	}
	p.claim(name)
	entries, _ := os.ReadDir(filepath.Join(p.path, name))
	if len(entries) != 2 {
		t.Errorf("a claim left %v", entries)
	}
}

func TestWhatOthersMayWriteToIsLeftAlone(t *testing.T) {
	p := newPlace(t)
	open, shared := p.folder(node7(42, 7), "000001.exit.heap"), p.folder(node7(43, 7), "000001.exit.heap", "000002.exit.heap", "000003.exit.heap")
	if err := errors.Join(
		os.Chmod(filepath.Join(p.path, open), 0o770),
		os.Chmod(filepath.Join(p.path, shared, "000001.exit.heap"), 0o622),
		os.Link(filepath.Join(p.path, shared, "000002.exit.heap"), filepath.Join(t.TempDir(), "other name")),
	); err != nil {
		t.Fatal(err)
	}
	folders, err := p.Processes()
	if len(folders) != 1 || folders[0] != shared {
		t.Errorf("folders %v", folders)
	}
	wantError(t, err, open+": left alone: mode 0770: others than its owner may write to it")
	if _, err := p.Claim(open); err == nil {
		t.Error("claimed a folder that others may write to")
	}
	proc := p.claim(shared)
	dumps, err := proc.Dumps()
	if len(dumps) != 1 || dumps[0].Seq != 3 {
		t.Errorf("dumps %v", dumps)
	}
	wantError(t, err, "000001.exit.heap: left alone: mode 0622", "000002.exit.heap: left alone: has another name elsewhere")
	for _, name := range []string{"000001.exit.heap", "000002.exit.heap"} {
		if f, err := proc.Open(Dump{Name: name}); err == nil {
			f.Close()
			t.Errorf("%s was opened", name)
		}
	}
}

func TestRootReadsAForeignFolderAndLeavesItsOwnersFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may give files away")
	}
	const user = 12345
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.interval.heap", "000002.interval.heap", "000003.interval.heap", "000004.exit.heap")
	in := func(file string) string { return filepath.Join(p.path, name, file) }
	for _, path := range []string{in(""), in("process.json"), in("000001.interval.heap"), in("000002.interval.heap"), in("000003.interval.heap")} {
		if err := os.Chown(path, user, user); err != nil {
			t.Fatal(err)
		}
	}
	// Root's own file, as a hard link in a folder of the user's would be.
	proc := p.claim(name)
	dumps, err := proc.Dumps()
	if len(dumps) != 3 {
		t.Fatalf("dumps %v, %v", dumps, err)
	}
	wantError(t, err, "000004.exit.heap: left alone: belongs to user 0, its folder to user 12345")
	if err := errors.Join(proc.Acknowledge(dumps[0], true), proc.Reject(dumps[1], "why"), proc.Settle(dumps[2].Name, "otlp")); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"delivered", "delivered/000001.interval.heap", "000002.interval.heap.rejected", "000002.interval.heap.rejected.txt", ".delivery"} {
		var st unix.Stat_t
		if err := unix.Lstat(in(file), &st); err != nil || st.Uid != user {
			t.Errorf("%s belongs to %d, %v", file, st.Uid, err)
		}
	}
}

func TestAJournalThatIsAnotherFileIsNotWrittenTo(t *testing.T) {
	p := newPlace(t)
	secret := filepath.Join(t.TempDir(), "secret")
	p.write(secret, "secret")
	for i, plant := range []func(path string) error{
		func(path string) error { return os.Symlink(secret, path) },
		func(path string) error { return os.Link(secret, path) },
		func(path string) error { return unix.Mkfifo(path, 0o600) },
		func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		name := p.folder(node7(42+i, 7), "000001.exit.heap")
		if err := plant(filepath.Join(p.path, name, ".delivery")); err != nil {
			t.Fatal(err)
		}
		proc := p.claim(name)
		if err := proc.Settle("000001.exit.heap", "otlp"); err == nil {
			t.Errorf("case %d: written", i)
		}
		if !proc.Settled("000001.exit.heap", "otlp") {
			t.Errorf("case %d: not known in this reader's life either", i)
		}
	}
	if text, _ := os.ReadFile(secret); string(text) != "secret" {
		t.Errorf("written through: %q", text)
	}
}

func TestTheJournalOutlivesItsReader(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000001.exit.heap", "000002.exit.heap")
	first, err := p.Claim(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(first.Settle("000001.exit.heap", "otlp"), first.SetNote("one"), first.SetNote("a\nb c"), first.Settle("death", "logs"), first.Release()); err != nil {
		t.Fatal(err)
	}
	next := p.claim(name)
	for _, c := range []struct {
		dump, sink string
		want       bool
	}{{"000001.exit.heap", "otlp", true}, {"000001.exit.heap", "logs", false}, {"000002.exit.heap", "otlp", false}, {"death", "logs", true}} {
		if next.Settled(c.dump, c.sink) != c.want {
			t.Errorf("%s %s: %v", c.dump, c.sink, !c.want)
		}
	}
	if got := next.Note(); got != "a b c" {
		t.Errorf("note %q", got)
	}
	if err := next.Settle("a b", "c"); err == nil {
		t.Error("a blank went through")
	}
}

// A journal cut at any byte, and continued, never says more than was written.
func TestATornJournalSaysNothingFalse(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7))
	path := filepath.Join(p.path, name, ".delivery")
	whole := "s 000001.exit.heap otlp .\nn {\"a\":1} .\ns 000002.exit.heap otlp-logs .\n"
	for cut := 0; cut <= len(whole); cut++ {
		p.write(path, whole[:cut])
		proc, err := p.Claim(name)
		if err != nil {
			t.Fatal(err)
		}
		if proc.Settled("000002.exit.heap", "otlp") {
			t.Errorf("cut at %d: half a line counts", cut)
		}
		if note := proc.Note(); note != "" && note != `{"a":1}` {
			t.Errorf("cut at %d: note %q", cut, note)
		}
		if err := errors.Join(proc.Settle("000003.exit.heap", "otlp"), proc.Release()); err != nil {
			t.Fatal(err)
		}
		next, err := p.Claim(name)
		if err != nil {
			t.Fatal(err)
		}
		if !next.Settled("000003.exit.heap", "otlp") || next.Settled("000002.exit.heap", "otlp") {
			t.Errorf("cut at %d: what was appended is lost, or the torn line came alive", cut)
		}
		if err := next.Release(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTheJournalStaysSmall(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), "000777.exit.heap")
	proc := p.claim(name)
	note := strings.Repeat("n", 1000)
	for seq := 1; seq <= 2000; seq++ {
		if err := errors.Join(proc.Settle(fmt.Sprintf("%06d.exit.heap", seq), "otlp:12345678"), proc.Settle("death", "logs"), proc.SetNote(note)); err != nil {
			t.Fatal(err)
		}
	}
	info, err := os.Stat(filepath.Join(p.path, name, ".delivery"))
	if err != nil || info.Size() > rewriteAfter+100<<10 {
		t.Errorf("%d bytes, %v", info.Size(), err)
	}
	if err := proc.Release(); err != nil {
		t.Fatal(err)
	}
	next, err := p.Claim(name)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Release()
	if !next.Settled("000777.exit.heap", "otlp:12345678") || !next.Settled("death", "logs") || next.Note() != note {
		t.Error("rewriting lost what is still needed")
	}
}
