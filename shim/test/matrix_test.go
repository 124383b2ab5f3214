// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/heapwire/heapwire/shim/test/pythons"
)

// A userland is the root folder of another Linux, entered by chroot in a mount namespace of its own.
type userland struct {
	root string
	work string // a folder in it, as it is called inside
}

var debianURI = regexp.MustCompile(`^\S+/debian/?$`)

// ownMirror is where this machine's own apt takes Debian from.
func ownMirror() (string, error) {
	out, err := exec.Command("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").Output()
	if err != nil {
		return "", fmt.Errorf("asking apt for its sources: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if uri := strings.TrimSpace(line); debianURI.MatchString(uri) {
			return uri, nil
		}
	}
	return "", errors.New("apt's sources have no Debian")
}

// A suite of Debian's, and what of it a userland has. The packages of `some` are taken where they are; one at least is.
type suite struct {
	name, variable string // variable: names a folder that has it already
	packages, some []string
}

// debian is the userland that the suite's variable names, or one that is made in build/ from the machine's own mirror.
func debian(t *testing.T, s suite) userland {
	t.Helper()
	if !full {
		t.Skip("HEAPWIRE_MATRIX is not set: make test-matrix")
	}
	if os.Geteuid() != 0 {
		t.Skip("entering another root folder needs root")
	}
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("a mount namespace cannot be made here: %v %s", err, out)
	}
	root := os.Getenv(s.variable)
	if root == "" {
		repository, err := filepath.Abs("../..")
		if err != nil {
			t.Fatal(err)
		}
		root = filepath.Join(repository, "build", "matrix", s.name)
		if _, err := os.Stat(filepath.Join(root, ".complete")); err != nil {
			s.install(t, root)
		}
	}
	work, err := os.MkdirTemp(filepath.Join(root, "tmp"), "heapwire-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(work) })
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	u := userland{root: root, work: filepath.Join("/tmp", filepath.Base(work))}
	if out, err := u.command(nil, "ldd", "--version").Output(); err == nil {
		t.Log(strings.SplitN(string(out), "\n", 2)[0])
	}
	return u
}

func (s suite) install(t *testing.T, root string) {
	t.Helper()
	debootstrap, err := exec.LookPath("debootstrap")
	if err != nil {
		t.Skipf("debootstrap is not installed, and %s names no root folder", s.variable)
	}
	mirror, err := ownMirror()
	if err != nil {
		t.Skip(err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	run := func(name string, args ...string) error {
		cmd := exec.Command(name, args...)
		cmd.Env = pythons.CleanEnv("DEBIAN_FRONTEND=noninteractive")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("%s: %w\n%s", name, err, tail(out.String()))
		}
		return nil
	}
	if err := run(debootstrap, "--variant=minbase", s.name, root, mirror); err != nil {
		t.Skipf("a userland cannot be made here: %v", err)
	}
	install := []string{root, "apt-get", "-q", "install", "-y", "--no-install-recommends"}
	if err := run("chroot", append(install, s.packages...)...); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, name := range s.some {
		if err := run("chroot", append(install, name)...); err != nil {
			t.Logf("no %s there", name)
			continue
		}
		found++
	}
	if len(s.some) > 0 && found == 0 {
		t.Fatalf("the new userland has none of %v", s.some)
	}
	if err := os.WriteFile(filepath.Join(root, ".complete"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// put copies files into the work folder, and says what they are called inside.
func (u userland) put(t *testing.T, paths ...string) string {
	t.Helper()
	for _, path := range paths {
		cmd := exec.Command("cp", "-rL", path, filepath.Join(u.root, u.work)+"/")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("copying %s: %v\n%s", path, err, out)
		}
	}
	return filepath.Join(u.work, filepath.Base(paths[len(paths)-1]))
}

func (u userland) command(env []string, command ...string) *exec.Cmd {
	const enter = `root=$1 work=$2; shift 2
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/dev/shm" || { mkdir -p "$root/dev/shm"; mount -t tmpfs tmpfs "$root/dev/shm"; } # for multiprocessing
exec chroot "$root" /usr/bin/env -C "$work" "$@"`
	// The variables are set inside: unshare and chroot are not to be profiled.
	args := append([]string{"--mount", "sh", "-c", enter, "enter", u.root, u.work}, env...)
	cmd := exec.Command("unshare", append(args, command...)...)
	cmd.Env = pythons.CleanEnv()
	return cmd
}

func (u userland) pythons(t *testing.T) []pythons.Python {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(u.root, "usr", "bin", "python3.[0-9]*"))
	if err != nil {
		t.Fatal(err)
	}
	var found []pythons.Python
	for _, path := range paths {
		inside := "/usr/bin/" + filepath.Base(path)
		out, err := u.command(nil, inside, "-c", "import sys; print(*sys.version_info[:3])").Output()
		if err != nil {
			continue // python3.13-config, for one
		}
		p := pythons.Python{Path: inside, Kind: "CPython"}
		if _, err := fmt.Sscan(string(out), &p.Major, &p.Minor, &p.Micro); err != nil {
			t.Fatalf("%s: %q", inside, out)
		}
		found = append(found, p)
	}
	return found
}

// The shim as it is built here, with a newer C library and newer Pythons. libstdc++ is for jemalloc's own shared object.
func TestNewerDebian(t *testing.T) {
	u := debian(t, suite{
		name: "sid", variable: "HEAPWIRE_MATRIX_ROOT",
		packages: []string{"libstdc++6", "gcc", "libc6-dev"},
		some:     []string{"python3.13", "python3.13-dev", "python3.14", "python3.14-dev", "python3.15", "python3.15-dev"},
	})
	u.survives(t, library, testLibrary, func(name string) string { return buildProgram(t, name) })
}

// The shim as it is built beside an older C library, with the same jemalloc: one without _dl_find_object, and without much else.
func TestOlderDebian(t *testing.T) {
	u := debian(t, suite{
		name: "bullseye", variable: "HEAPWIRE_MATRIX_OLD_ROOT",
		packages: []string{"libstdc++6", "gcc", "libc6-dev", "make", "binutils", "python3"},
	})
	archive := os.Getenv("JEMALLOC_PIC")
	if archive == "" {
		out, err := exec.Command("gcc", "-print-file-name=libjemalloc_pic.a").Output()
		if err != nil {
			t.Fatal(err)
		}
		archive = strings.TrimSpace(string(out))
	}
	u.put(t, archive)
	u.put(t, "../../shim")
	run := func(command ...string) {
		t.Helper()
		if out, err := u.command(nil, command...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, tail(string(out)))
		}
	}
	run("make", "-C", "shim", "BIN="+u.work+"/built", "BUILD="+u.work+"/build", "JEMALLOC_PIC="+filepath.Join(u.work, filepath.Base(archive)), "all", "test-library")
	outside := filepath.Join(u.root, u.work)
	u.survives(t, filepath.Join(outside, "built", "libheapwire.so"), filepath.Join(outside, "build", "libheapwire_test.so"), func(name string) string {
		out := filepath.Join("build", name)
		args := []string{"gcc", "-O1", "-g"}
		if strings.HasPrefix(name, "lib") {
			out += ".so"
			args = append(args, "-shared", "-fPIC")
		}
		run(append(args, "-o", out, filepath.Join("shim/test/programs", strings.TrimPrefix(name, "lib")+".c"), "-lpthread", "-ldl")...)
		return filepath.Join(outside, out)
	})
}

// survives runs captures, dangers and attributions under every Python there. The library, the one with a window into its hook, and
// programs are such as run there.
func (u userland) survives(t *testing.T, library, testLibrary string, program func(name string) string) {
	found := u.pythons(t)
	if len(found) == 0 {
		t.Fatalf("no Python in %s", u.root)
	}
	shim, window := u.put(t, library), u.put(t, testLibrary)
	u.put(t, "frames.py", "programs/dangers.py", program("libdangers"))
	copies := libraryCopies(t, program("libtls_library"), 65)
	hookLibrary := u.put(t, copies...)
	inside := make([]string, 64)
	for i := range inside {
		inside[i] = filepath.Join(u.work, filepath.Base(copies[i]))
	}
	spool := "HEAPWIRE_SPOOL=" + filepath.Join(u.work, "spool")

	t.Run("threads and libraries that come by dlopen", func(t *testing.T) {
		storm := append([]string{u.put(t, program("tls_storm")), "3", "200"}, inside...)
		twice := u.put(t, program("librealloc_twice"))
		naive := "no jemalloc to be preloaded"
		if matches, _ := filepath.Glob("/usr/lib/*/libjemalloc.so.2"); len(matches) > 0 {
			preload := twice + ":" + u.put(t, program("libnaive_hook")) + ":" + u.put(t, matches[0])
			o := watchdog{limit: roundLimit, expectsHang: true}.watch(t, u.command([]string{
				"LD_PRELOAD=" + preload, "MALLOC_CONF=prof:true,lg_prof_sample:0", "NAIVE=tls", "NAIVE_TLS=" + hookLibrary,
			}, storm...))
			naive = o.String()
			if !o.well(3) && o.code != 77 {
				t.Log("the naive way:", o)
				naive = ""
			}
		}
		o := watchdog{limit: 4 * roundLimit}.watch(t, u.command([]string{"LD_PRELOAD=" + twice + ":" + shim, "HEAPWIRE_TARGET=all", everything, spool}, storm...))
		if !o.well(3) {
			t.Fatalf("under the shim: %v", o)
		}
		if naive != "" {
			t.Skip("did no harm, but cannot tell here: " + naive)
		}
	})
	for _, name := range []string{"jit_frames", "loader_lock", "keeps_errno", "leave_anywhere"} {
		t.Run(name, func(t *testing.T) {
			const rounds = 30
			program := u.put(t, program(name))
			o := watchdog{limit: 4 * roundLimit}.watch(t, u.command([]string{"LD_PRELOAD=" + shim, "HEAPWIRE_TARGET=all", everything, spool}, program, strconv.Itoa(rounds)))
			if !o.well(rounds) {
				t.Errorf("under the shim: %v", o)
			}
		})
	}
	for _, p := range found {
		t.Run(p.String(), func(t *testing.T) {
			t.Run("captures", func(t *testing.T) {
				out, err := u.command([]string{"LD_PRELOAD=" + window, spool}, p.Path, "frames.py").CombinedOutput()
				if err != nil || !bytes.Contains(out, []byte(" 0 wrong")) {
					t.Errorf("%v\n%s", err, tail(string(out)))
				}
				t.Log(strings.TrimSpace(tail(string(out))))
			})
			for _, d := range dangers {
				if d.python == "" {
					continue
				}
				t.Run(d.name, func(t *testing.T) {
					env := append([]string{"LD_PRELOAD=" + shim, everything, spool}, d.env...)
					o := watchdog{limit: 4 * roundLimit}.watch(t, u.command(env, p.Path, "dangers.py", "./libdangers.so", d.python, strconv.Itoa(d.short)))
					if !o.well(d.short) {
						t.Errorf("under the shim: %v", o)
					}
				})
			}
		})
	}
	t.Run("leaks are attributed", func(t *testing.T) { u.attributes(t, library) })
}

// attributes runs the examples' test of attribution inside, under every interpreter there.
func (u userland) attributes(t *testing.T, library string) {
	static := func(out, folder string, build ...string) string {
		t.Helper()
		cmd := exec.Command("go", append(build, "-o", out, folder)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // whatever C library there is
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building %s: %v\n%s", out, err, text)
		}
		return out
	}
	heapwire := static(filepath.Join(t.TempDir(), "heapwire"), "../../exporter/cmd/heapwire", "build")
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	u.put(t, bin, "../../examples")
	inside := u
	inside.work = filepath.Join(u.work, "bin")
	inside.put(t, heapwire, library)
	inside.work = filepath.Join(u.work, "examples")
	tests := static(filepath.Join(t.TempDir(), "examples.test"), "../../examples", "test", "-c")
	program := inside.put(t, tests)
	out, err := inside.command(nil, program, "-test.v", "-test.run", "^TestLeaksAreAttributedToFunctionFileAndLine$").CombinedOutput()
	passed := regexp.MustCompile(`(?m)^ *--- PASS: \S+/\S+/\S+`).FindAll(out, -1)
	t.Logf("%d lessons right", len(passed))
	if err != nil || len(passed) == 0 {
		t.Errorf("%v\n%s", err, tail(string(out)))
	}
}

// ---------------------------------------------------------------- other people's tests

// Some of numpy's own tests, where pip brings it: into build/, for the newest Python that has a wheel.
func TestNumpysOwnTestsPass(t *testing.T) {
	if !full {
		t.Skip("HEAPWIRE_MATRIX is not set: make test-matrix")
	}
	const numpyTest = `
import os, sys
import numpy, pytest
root = os.path.dirname(numpy.__file__)
core = os.path.join(root, "_core" if os.path.isdir(os.path.join(root, "_core", "tests")) else "core", "tests")
paths = [os.path.join(core, "test_indexing.py"), os.path.join(core, "test_item_selection.py"), os.path.join(core, "test_errstate.py")]
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-m", "not slow"] + paths))
`
	p := venv(t, "numpy", "pytest", "hypothesis")
	start := time.Now()
	// No watchdog but go test's own: with every 512th byte sampled it takes three times as long.
	own := func(env ...string) (string, error) {
		cmd := exec.Command(p.Path, "-c", numpyTest)
		cmd.Env = pythons.CleanEnv(append([]string{"PYTHONMALLOC=malloc"}, env...)...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	with, err := own("LD_PRELOAD="+library, "HEAPWIRE_SPOOL="+filepath.Join(t.TempDir(), "spool"), "HEAPWIRE_SAMPLE_BYTES=512")
	t.Logf("%s: %s, %.0f s", p, lastLine(with), time.Since(start).Seconds())
	if err == nil {
		return
	}
	out, _ := own()
	t.Logf("without the shim: %s", lastLine(out))
	failed := regexp.MustCompile(`(?m)^(?:FAILED|ERROR) (\S+)`)
	known := map[string]bool{}
	for _, m := range failed.FindAllStringSubmatch(out, -1) {
		known[m[1]] = true
	}
	ours := failed.FindAllStringSubmatch(with, -1)
	if len(ours) == 0 {
		t.Errorf("%v\n%s", err, tail(with))
	}
	for _, m := range ours {
		if !known[m[1]] {
			t.Errorf("%s passes without the shim, and not with it\n%s", m[1], tail(with))
		}
	}
}

// A small training loop, with workers that load its data, wherever an interpreter has torch (HEAPWIRE_PYTHONS names more): its
// wheel is too big to be fetched by a test.
func TestTorchTrains(t *testing.T) {
	const train = `
import torch, torch.utils.data as data
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(2000, 64)
loader = data.DataLoader(data.TensorDataset(x, x.sum(1, keepdim=True)), batch_size=50, num_workers=2)
for epoch in range(3):
    for a, b in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(a), b)
        loss.backward()
        optimizer.step()
print("%.6f" % loss.item())
`
	hasTorch := func(p pythons.Python) bool {
		if !full || !p.Supported() {
			return false
		}
		cmd := exec.Command(p.Path, "-c", "import importlib.util as u, sys; sys.exit(u.find_spec('torch') is None)")
		cmd.Env = pythons.CleanEnv()
		return cmd.Run() == nil
	}
	eachPython(t, hasTorch, func(t *testing.T, p pythons.Python) {
		plain := exec.Command(p.Path, "-c", train)
		plain.Env = pythons.CleanEnv()
		want, err := plain.Output()
		if err != nil {
			t.Skipf("it does not train without the shim: %v", err)
		}
		r := under(t, library, []string{"HEAPWIRE_SAMPLE_BYTES=512"}, p.Path, "-c", train)
		if r.code != 0 || r.stdout != string(want) {
			t.Errorf("exit status %d, loss %q; without the shim %q\n%s", r.code, r.stdout, want, tail(r.stderr))
		}
	})
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// venv makes a virtual environment with packages, of the newest supported Python for which pip brings them.
func venv(t *testing.T, packages ...string) pythons.Python {
	t.Helper()
	all, err := pythons.Find()
	if err != nil {
		t.Fatal(err)
	}
	for i := len(all) - 1; i >= 0; i-- {
		p := all[i]
		if !p.Supported() {
			continue
		}
		folder, err := filepath.Abs(filepath.Join("../../build/matrix", "venv-"+packages[0]+"-"+p.String()))
		if err != nil {
			t.Fatal(err)
		}
		python := filepath.Join(folder, "bin", "python")
		if _, err := os.Stat(filepath.Join(folder, ".complete")); err != nil {
			steps := [][]string{
				{p.Path, "-m", "venv", "--clear", folder},
				append([]string{python, "-m", "pip", "install", "-q", "--only-binary", ":all:"}, packages...),
			}
			failed := false
			for _, step := range steps {
				cmd := exec.Command(step[0], step[1:]...)
				cmd.Env = pythons.CleanEnv("PIP_DISABLE_PIP_VERSION_CHECK=1")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Logf("%s: %v\n%s", p, err, tail(string(out)))
					failed = true
					break
				}
			}
			if failed {
				continue
			}
			if err := os.WriteFile(filepath.Join(folder, ".complete"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		p.Path = python
		return p
	}
	t.Skipf("pip brings no %s here", packages[0])
	panic("not reached")
}
