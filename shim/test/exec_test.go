// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

const guardOff = "HEAPWIRE_EXEC_GUARD=off"

// Programs that do not start with the library, and how they fail then.
type refuser struct {
	name string
	path string
	code int
}

func buildTarget(t *testing.T, name string, compiler ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	args := append(append([]string{}, compiler[1:]...), "-O1", "-o", out, "programs/exec_target.c")
	if text, err := exec.Command(compiler[0], args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", compiler, err, text)
	}
	return out
}

func refusers(t *testing.T) []refuser {
	t.Helper()
	all := []refuser{
		{"asan", buildTarget(t, "asan", "gcc", "-fsanitize=address"), 1},
		{"tsan", buildTarget(t, "tsan", "gcc", "-fsanitize=thread"), 139},
	}
	if _, err := exec.LookPath("musl-gcc"); err == nil {
		return append([]refuser{{"musl", buildTarget(t, "musl", "musl-gcc"), 127}}, all...)
	}
	t.Log("no musl-gcc: programs of musl are left out")
	return all
}

// An empty library without dependencies: any loader takes it.
func otherLibrary(t *testing.T) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "other.so")
	if text, err := exec.Command("gcc", "-shared", "-nostdlib", "-o", out, "-x", "c", os.DevNull).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, text)
	}
	return out
}

func variables(text string) (list []string, preload string) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if value, ok := strings.CutPrefix(line, "LD_PRELOAD="); ok {
			preload = value
		} else if !strings.HasPrefix(line, "argument ") && !strings.HasPrefix(line, "_=") {
			list = append(list, line)
		}
	}
	return list, preload
}

var execFunctions = []string{
	"execve", "execv", "execvp", "execvpe", "execl", "execlp", "execle", "fexecve", "fexecve-path", "execveat", "execveat-empty",
	"posix_spawn", "posix_spawnp",
}

func TestWhatRefusesTheLibraryStartsWithoutIt(t *testing.T) {
	caller := compileC(t, "programs/exec_call.c")
	glibc := buildTarget(t, "glibc", "gcc")
	other := otherLibrary(t)
	all := refusers(t)
	for _, function := range execFunctions {
		ways := [][]string{{}, {"vfork"}}
		if function == "execve" || function == "posix_spawn" { // on the stack, and beyond it
			ways = append(ways, []string{"pad:500"}, []string{"pad:3000"}, []string{"pad:3000", "vfork"})
		}
		for _, way := range ways {
			call := append(append([]string{caller}, way...), function)
			name := strings.Join(call[1:], " ")
			// What a program that takes the library is given is what the others are to be given too.
			want := under(t, library, nil, append(call, glibc, "a b", "7")...)
			wantVariables, preload := variables(want.stdout)
			if want.code != 7 || want.stderr != "" || preload != library {
				t.Errorf("%s: a program that takes the library: exit status %d, LD_PRELOAD=%s, stderr %q", name, want.code, preload, want.stderr)
			}
			for _, r := range all {
				if len(way) == 0 {
					if off := under(t, library, []string{guardOff}, append(call, r.path, "7")...); off.code != r.code {
						t.Errorf("%s %s without the guard: exit status %d, want the failure, %d", name, r.name, off.code, r.code)
					}
				}
				got := under(t, library, []string{"HEAPWIRE_SPOOL=" + want.spool}, append(call, r.path, "a b", "7")...)
				gotVariables, preload := variables(got.stdout)
				if got.code != 7 || got.stderr != "" || preload != "" || !strings.HasPrefix(got.stdout, "argument a b\nargument 7\n") {
					t.Errorf("%s %s: exit status %d, LD_PRELOAD=%q, stderr %q", name, r.name, got.code, preload, got.stderr)
				}
				if strings.Join(gotVariables, "\n") != strings.Join(wantVariables, "\n") {
					t.Errorf("%s %s: environment\n%q, want\n%q", name, r.name, gotVariables, wantVariables)
				}
			}
		}
		for _, r := range all {
			for _, list := range []string{other + ":" + library, library + " " + other, other + "  " + library + "::"} {
				// ASan would abort for the other library's sake.
				got := under(t, list, []string{"ASAN_OPTIONS=verify_asan_link_order=0"}, caller, function, r.path, "7")
				if _, preload := variables(got.stdout); got.code != 7 || preload != other {
					t.Errorf("%s %s with LD_PRELOAD=%q: exit status %d, LD_PRELOAD=%q", function, r.name, list, got.code, preload)
				}
			}
		}
	}
}

func TestRefusersStartFromShellsAndFromPython(t *testing.T) {
	all := refusers(t)
	for _, r := range all {
		script := filepath.Join(t.TempDir(), "script")
		if err := os.WriteFile(script, []byte("#!"+r.path+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		// Bash runs a lone command without a fork of its own; a script's own path is its last argument.
		for _, command := range [][]string{
			{"bash", "-c", r.path + " 7"}, {"bash", "-c", r.path + " 7; exit $?"}, {"sh", "-c", r.path + " 7; exit $?"},
			{"sh", "-c", "exec " + r.path + " 7"}, {"env", r.path, "7"}, {"bash", "-c", "cd " + filepath.Dir(r.path) + " && ./" + r.name + " 7"},
			{"bash", "-c", "PATH=/nowhere:" + filepath.Dir(r.path) + ":$PATH; " + r.name + " 7"},
			{"bash", "-c", "env -i LD_PRELOAD=$LD_PRELOAD " + r.path + " 7"}, {"nice", script, "7"}, {"bash", "-c", script + " 7"},
			{"sh", "-c", "sh -c 'bash -c \"" + script + " 7; exit \\$?\"'"},
		} {
			if off := under(t, library, []string{guardOff}, command...); off.code != r.code {
				t.Errorf("%q without the guard: exit status %d, want the failure, %d", command, off.code, r.code)
			}
			got := under(t, library, nil, command...)
			if got.code != 7 || got.stderr != "" || !strings.Contains(got.stdout, "argument 7\n") {
				t.Errorf("%q: exit status %d: %s%s", command, got.code, got.stdout, got.stderr)
			}
		}
	}
	const program = `
import os, subprocess, sys
target = sys.argv[1]
folder, name = os.path.split(target)
failed = []
def check(what, code):
    if code != 7:
        failed.append((what, code))
quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
check("run", subprocess.run([target, "7"], **quiet).returncode)
check("close_fds=False", subprocess.run([target, "7"], close_fds=False, **quiet).returncode)
check("env=", subprocess.run([target, "7"], env=dict(os.environ, MORE="1"), **quiet).returncode)
check("preexec_fn", subprocess.run([target, "7"], preexec_fn=lambda: None, **quiet).returncode)
check("cwd=", subprocess.run(["./" + name, "7"], cwd=folder, **quiet).returncode)
check("shell=True", subprocess.run(target + " 7; exit $?", shell=True, **quiet).returncode)
check("in PATH", subprocess.run([name, "7"], env=dict(os.environ, PATH="/nowhere:" + folder), **quiet).returncode)
check("os.system", os.waitstatus_to_exitcode(os.system(target + " 7 >/dev/null 2>&1")) if hasattr(os, "waitstatus_to_exitcode") else 7)
null = os.open(os.devnull, os.O_WRONLY)
actions = [(os.POSIX_SPAWN_DUP2, null, 1), (os.POSIX_SPAWN_DUP2, null, 2)]
def wait(pid):
    status = os.waitpid(pid, 0)[1]
    return status >> 8 if status & 127 == 0 else -(status & 127)
check("os.posix_spawn", wait(os.posix_spawn(target, [target, "7"], os.environ, file_actions=actions)))
os.environ["PATH"] = "/nowhere:" + folder
check("os.posix_spawnp", wait(os.posix_spawnp(name, [target, "7"], os.environ, file_actions=actions)))
def forked(what, f):
    pid = os.fork()
    if pid == 0:
        os.dup2(null, 1)
        os.dup2(null, 2)
        try:
            f()
        finally:
            os._exit(9)
    check(what, wait(pid))
forked("os.execv", lambda: os.execv(target, [target, "7"]))
forked("os.execve", lambda: os.execve(target, [target, "7"], os.environ))
forked("os.execvp", lambda: os.execvp(name, [target, "7"]))
forked("os.execlp", lambda: os.execlp(name, target, "7"))
forked("os.execve of a descriptor", lambda: os.execve(os.open(target, os.O_RDONLY), [target, "7"], os.environ))
print(failed)
`
	eachPython(t, pythons.Python.Supported, func(t *testing.T, p pythons.Python) {
		for _, r := range all {
			got := under(t, library, nil, p.Path, "-W", "ignore", "-c", program, r.path)
			if got.code != 0 || got.stdout != "[]\n" || got.stderr != "" {
				t.Errorf("%s: exit status %d: %s%s", r.name, got.code, got.stdout, got.stderr)
			}
			off := under(t, library, []string{guardOff}, p.Path, "-W", "ignore", "-c", program, r.path)
			if strings.Count(off.stdout, "), (") < 13 {
				t.Errorf("%s without the guard: not every way fails: %s%s", r.name, off.stdout, off.stderr)
			}
		}
	})
}

// What is passed over, what is refused and with which errno is libc's affair, with the library and without.
func TestFailuresAreTheSameWithoutTheLibrary(t *testing.T) {
	caller := compileC(t, "programs/exec_call.c")
	dir := t.TempDir()
	target := buildTarget(t, "target", "gcc")
	header, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	foreign := append([]byte{}, header...)
	foreign[18], foreign[19] = 183, 0 // EM_AARCH64
	damaged := append([]byte{}, header...)
	damaged[54]-- // e_phentsize
	for name, file := range map[string]struct {
		content string
		mode    os.FileMode
	}{
		"unreadable/x": {"#!/bin/sh\nexit 5\n", 0o644}, "first/two": {"exit 6\n", 0o644}, "second/two": {"#!/bin/sh\nexit 5\n", 0o755},
		"second/plain": {"echo plain; exit 6\n", 0o755}, "second/empty": {"", 0o755}, "second/foreign": {string(foreign), 0o755},
		"second/damaged": {string(damaged), 0o755}, "second/cut": {string(header[:100]), 0o755},
		"second/nothing": {"#!/no/interpreter\n", 0o755}, "second/loop": {"#!" + filepath.Join(dir, "second/loop") + "\n", 0o755},
		"second/folder/x": {"", 0o755}, "second/long": {"#!" + strings.Repeat("/x", 200) + "\n", 0o755},
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(file.content), file.mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("turn", filepath.Join(dir, "second/turn")); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("PATH=%s/nowhere:%s/unreadable:%s/first::%s/second:%s", dir, dir, dir, dir, os.Getenv("PATH"))
	files := []string{"", "missing", filepath.Join(dir, "missing"), filepath.Join(dir, "unreadable/x"), "x", "two", "second", "folder", strings.Repeat("n", 300)}
	for _, name := range []string{"plain", "empty", "foreign", "damaged", "cut", "nothing", "loop", "folder", "long", "turn", "plain/x"} {
		files = append(files, filepath.Join(dir, "second", name), name)
	}
	compared := 0
	for _, function := range execFunctions {
		if strings.HasPrefix(function, "fexecve") || function == "execveat-empty" {
			continue // without a file there is no descriptor: tested with those that are there
		}
		for _, file := range files {
			binary := slices.Contains([]string{"foreign", "damaged", "cut"}, filepath.Base(file))
			if binary && slices.Contains([]string{"execvp", "execvpe", "execlp"}, function) {
				continue // libc gives it to the shell, and the shell finds a > in it
			}
			ways := [][]string{{}}
			if function == "execve" || function == "execvp" {
				ways = append(ways, []string{"vfork"})
			}
			for _, way := range ways {
				command := append(append([]string{caller}, way...), function, file, "7")
				without := under(t, "", []string{path}, command...)
				with := under(t, library, []string{path}, command...)
				if with.code != without.code || with.stdout != without.stdout || with.stderr != without.stderr {
					t.Errorf("%v %q: exit status %d %q %q, without the library %d %q %q", command[1:], file, with.code, with.stdout, with.stderr,
						without.code, without.stdout, without.stderr)
				}
				compared++
			}
		}
	}
	t.Logf("%d calls", compared)
}

// File actions may change the folder before the file is looked for: a relative path is not judged then.
func TestRelativePathsWithFileActionsAreNotJudged(t *testing.T) {
	caller := compileC(t, "programs/exec_call.c")
	all := refusers(t)
	folder, name := filepath.Split(all[0].path)
	for _, function := range []string{"posix_spawn", "posix_spawnp"} {
		got := under(t, library, nil, caller, "chdir:"+folder, function, "./"+name, "7")
		if got.code != all[0].code {
			t.Errorf("%s: exit status %d", function, got.code)
		}
		got = under(t, library, nil, caller, "chdir:/", function, all[0].path, "7")
		if got.code != 7 {
			t.Errorf("%s with a whole path: exit status %d", function, got.code)
		}
	}
}
