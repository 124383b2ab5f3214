// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const snapshotName, jsonName = "000004.oom.cuda.pickle", "000004.oom.cuda.json"

func TestSnapshotsAreDumps(t *testing.T) {
	p := newPlace(t)
	p.stat(42, "S", 1, 7)
	name := p.folder(node7(42, 7), "000005.interval.heap", snapshotName, "000003.steps4-5.npu.pickle", "000009.api.cuda.pickle")
	in := func(file string) string { return filepath.Join(p.path, name, file) }
	p.write(in(jsonName), `{"reason": "oom"}`)
	p.write(in("000006.oom.cuda.json"), `{"reason": "oom"}`)                       // its snapshot is about to come
	p.write(in("000007.oom.cuda.json"), `{"reason": "oom", "error": "disk full"}`) // and this one's never will
	p.write(in("000008.oom.CUDA.pickle"), "")
	proc := p.claim(name)
	dumps, err := proc.Dumps()
	wantError(t, err, "000008.oom.CUDA.pickle: left alone: want <seq>.<reason>.heap, or <seq>.<what>.<kind>.pickle")
	if got, want := dumpNames(dumps), []string{"000003.steps4-5.npu.pickle", snapshotName, "000005.interval.heap", "000007.oom.cuda.json", "000009.api.cuda.pickle"}; !slices.Equal(got, want) {
		t.Fatalf("got %q, want %q", got, want)
	}
	d := dumps[1]
	if d.Seq != 4 || d.Reason != "oom" || d.Kind != "cuda" || d.Size != 10+17 || d.Alone() || d.Sidecar() != jsonName {
		t.Errorf("%+v", d)
	}
	if dumps[0].Kind != "npu" || dumps[0].Reason != "steps4-5" || dumps[2].Kind != "" || dumps[2].Sidecar() != "" || !dumps[3].Alone() {
		t.Errorf("%+v", dumps)
	}
	if text, err := proc.ReadSidecar(d); err != nil || string(text) != `{"reason": "oom"}` {
		t.Errorf("%q, %v", text, err)
	}
	for _, without := range []Dump{dumps[2], dumps[4]} {
		if _, err := proc.ReadSidecar(without); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", without.Name, err)
		}
	}

	if err := errors.Join(proc.Acknowledge(d, false), proc.Acknowledge(dumps[0], true), proc.Reject(dumps[3], "odd"), proc.Drop(dumps[4]), proc.Drop(dumps[2])); err != nil {
		t.Fatal(err)
	}
	got, _ := names(proc.dir)
	slices.Sort(got)
	want := []string{".delivery", "000006.oom.cuda.json", "000007.oom.cuda.json.rejected", "000007.oom.cuda.json.rejected.txt", "000008.oom.CUDA.pickle", "delivered", "process.json"}
	if !slices.Equal(got, want) {
		t.Errorf("left %q, want %q", got, want)
	}
	if kept, err := proc.Kept(); err != nil || len(kept) != 3 {
		t.Errorf("kept %+v, %v", kept, err)
	}
	// The process ends: what never got its snapshot is told, as it is.
	os.RemoveAll(filepath.Join(p.proc, "42"))
	dumps, _ = proc.Dumps()
	if got := dumpNames(dumps); !slices.Equal(got, []string{"000006.oom.cuda.json"}) || !dumps[0].Alone() {
		t.Errorf("of a dead process: %q", got)
	}
}

// A reader that is killed between the two removals leaves a JSON: it was delivered with its snapshot.
func TestJSONOfADeliveredSnapshotIsNotADump(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), snapshotName)
	side := filepath.Join(p.path, name, jsonName)
	p.write(side, `{"reason": "oom", "error": "not true"}`)
	proc := p.claim(name)
	dumps, err := proc.Dumps()
	if err != nil || len(dumps) != 1 {
		t.Fatal(dumps, err)
	}
	if err := proc.Acknowledge(dumps[0], false); err != nil {
		t.Fatal(err)
	}
	p.write(side, `{"reason": "oom", "error": "not true"}`)
	if err := proc.Release(); err != nil {
		t.Fatal(err)
	}
	next := p.claim(name)
	if dumps, err = next.Dumps(); err != nil || len(dumps) != 0 {
		t.Errorf("%+v, %v", dumps, err)
	}
	if _, err := os.Stat(side); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the JSON is still there: %v", err)
	}
	if removed, err := next.RemoveIfDrained(); !removed || err != nil {
		t.Errorf("the folder of the dead process stays: %v", err)
	}
}

func TestJSONWithoutSnapshotGoesWithItsFolder(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7))
	p.write(filepath.Join(p.path, name, jsonName), `{}`)
	if removed, err := p.claim(name).RemoveIfDrained(); !removed || err != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	name = p.folder(node7(43, 7), snapshotName)
	p.write(filepath.Join(p.path, name, jsonName), `{}`)
	if removed, err := p.claim(name).RemoveIfDrained(); removed || err != nil {
		t.Errorf("with a snapshot: removed %v, %v", removed, err)
	}
}

func TestOddJSONIsNotRead(t *testing.T) {
	p := newPlace(t)
	secret := filepath.Join(t.TempDir(), "secret")
	p.write(secret, `{"error": "a"}`)
	name := p.folder(node7(42, 7), "000001.oom.cuda.pickle", "000002.oom.cuda.pickle", "000003.oom.cuda.pickle", "000004.oom.cuda.pickle")
	in := func(file string) string { return filepath.Join(p.path, name, file) }
	p.write(in("000003.oom.cuda.json"), string(make([]byte, 1<<20+1)))
	p.write(in("000004.oom.cuda.json"), "{}")
	if err := errors.Join(os.Symlink(secret, in("000001.oom.cuda.json")), unix.Mkfifo(in("000002.oom.cuda.json"), 0o600), os.Chmod(in("000004.oom.cuda.json"), 0o622)); err != nil {
		t.Fatal(err)
	}
	proc := p.claim(name)
	dumps, err := proc.Dumps()
	if len(dumps) != 4 {
		t.Fatalf("%+v, %v", dumps, err)
	}
	for i, want := range []string{"not a regular file", "not a regular file", "more than the 1048576 allowed", "mode 0622"} {
		_, err := proc.ReadSidecar(dumps[i])
		wantError(t, err, dumps[i].Sidecar(), want)
	}
}

func TestPartsAreForgottenWithTheirDump(t *testing.T) {
	p := newPlace(t)
	name := p.folder(node7(42, 7), snapshotName)
	proc := p.claim(name)
	here, gone := Part(snapshotName, "oom@cuda:0"), Part("000001.oom.cuda.pickle", "oom@cuda:0")
	err := errors.Join(proc.Settle(here, "otlp"), proc.Settle(gone, "otlp"))
	proc.journal.most = 0 // as after many notes
	if err = errors.Join(err, proc.SetNote("n")); err != nil {
		t.Fatal(err)
	}
	if err := proc.Release(); err != nil {
		t.Fatal(err)
	}
	next := p.claim(name)
	if !next.Settled(here, "otlp") || next.Settled(gone, "otlp") || next.Settled(snapshotName, "otlp") {
		t.Error("parts of a dump that is there, of one that is gone, the dump itself: want only the first")
	}
}
