// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

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

// newerDebian is the userland named by HEAPWIRE_MATRIX_ROOT, or one that is made in build/ from the machine's own mirror.
func newerDebian(t *testing.T) userland {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("entering another root folder needs root")
	}
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("a mount namespace cannot be made here: %v %s", err, out)
	}
	root := os.Getenv("HEAPWIRE_MATRIX_ROOT")
	if root == "" {
		repository, err := filepath.Abs("../..")
		if err != nil {
			t.Fatal(err)
		}
		root = filepath.Join(repository, "build", "matrix", "sid")
		if _, err := os.Stat(filepath.Join(root, ".complete")); err != nil {
			makeUserland(t, root)
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
	return userland{root: root, work: filepath.Join("/tmp", filepath.Base(work))}
}

func makeUserland(t *testing.T, root string) {
	t.Helper()
	debootstrap, err := exec.LookPath("debootstrap")
	if err != nil {
		t.Skip("debootstrap is not installed, and HEAPWIRE_MATRIX_ROOT names no root folder")
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
	if err := run(debootstrap, "--variant=minbase", "sid", root, mirror); err != nil {
		t.Skipf("a userland cannot be made here: %v", err)
	}
	// What jemalloc's own shared object needs, and every Python there is.
	if err := run("chroot", root, "apt-get", "-q", "install", "-y", "--no-install-recommends", "libstdc++6"); err != nil {
		t.Fatal(err)
	}
	found := 0
	for minor := 13; minor <= 15; minor++ {
		if err := run("chroot", root, "apt-get", "-q", "install", "-y", "--no-install-recommends", fmt.Sprintf("python3.%d", minor)); err != nil {
			t.Logf("no python3.%d there", minor)
			continue
		}
		found++
	}
	if found == 0 {
		t.Fatal("the new userland has no Python")
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

// The shim as it is built here, in a userland with a newer C library and newer Pythons.
func TestNewerDebian(t *testing.T) {
	if !full {
		t.Skip("HEAPWIRE_MATRIX is not set: make test-matrix")
	}
	u := newerDebian(t)
	found := u.pythons(t)
	if len(found) == 0 {
		t.Fatalf("no Python in %s", u.root)
	}
	if out, err := u.command(nil, "ldd", "--version").Output(); err == nil {
		t.Log(strings.SplitN(string(out), "\n", 2)[0])
	}
	shim, window := u.put(t, library), u.put(t, testLibrary)
	u.put(t, "frames.py", "programs/dangers.py", buildProgram(t, "libdangers"))
	copies := libraryCopies(t, 65)
	hookLibrary := u.put(t, copies...)
	inside := make([]string, 64)
	for i := range inside {
		inside[i] = filepath.Join(u.work, filepath.Base(copies[i]))
	}
	spool := "HEAPWIRE_SPOOL=" + filepath.Join(u.work, "spool")

	t.Run("threads and libraries that come by dlopen", func(t *testing.T) {
		storm := append([]string{u.put(t, buildProgram(t, "tls_storm")), "3", "200"}, inside...)
		twice := u.put(t, buildProgram(t, "librealloc_twice"))
		naive := "no jemalloc to be preloaded"
		if matches, _ := filepath.Glob("/usr/lib/*/libjemalloc.so.2"); len(matches) > 0 {
			preload := twice + ":" + u.put(t, buildProgram(t, "libnaive_hook")) + ":" + u.put(t, matches[0])
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
			program := u.put(t, buildProgram(t, name))
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
			t.Run("a leak is attributed", func(t *testing.T) { u.attributes(t, p) })
		})
	}
}

// attributes runs the first example inside and compares its profile with what it says of itself.
func (u userland) attributes(t *testing.T, p pythons.Python) {
	heapwire := filepath.Join(filepath.Dir(library), "heapwire")
	if _, err := os.Stat(heapwire); err != nil {
		t.Skip("bin/heapwire is not built: make build")
	}
	u.put(t, heapwire, library, "../../examples/truth.py")
	program := u.put(t, "../../examples/leak_basic/leak_basic.py")
	out := "out-" + p.String()
	cmd := u.command([]string{"HEAPWIRE_SAMPLE_BYTES=16384"}, filepath.Join(u.work, "heapwire"), "run", "--out", out, "--",
		p.Path, program, "--rounds", "5", "--blocks", "128", "--pause", "0.1")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("heapwire run: %v\n%s%s", err, &stdout, &stderr)
	}
	var truth struct {
		Sites map[string]struct {
			Blocks int64 `json:"blocks"`
			Bytes  int64 `json:"block_bytes"`
		} `json:"sites"`
	}
	if err := json.Unmarshal(stdout.Bytes(), &truth); err != nil {
		t.Fatalf("%v: %q", err, &stdout)
	}
	names, _ := filepath.Glob(filepath.Join(u.root, u.work, out, "*", "*.exit.pb.gz"))
	if len(names) != 1 {
		t.Fatalf("profiles: %v, want one\n%s", names, &stderr)
	}
	text, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	prof, err := profile.ParseData(text)
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("../../examples/leak_basic/leak_basic.py")
	if err != nil {
		t.Fatal(err)
	}
	for site, function := range map[string]string{"uploads": "remember_upload", "rows": "remember_row"} {
		line := int64(1 + bytes.Count(source[:bytes.Index(source, []byte("# LEAK: "+site))], []byte("\n")))
		got := int64(0)
		for _, s := range prof.Sample {
			if f, at := innermost(s); f == function && at == line {
				got += s.Value[inuse(prof)]
			}
		}
		want := truth.Sites[site].Blocks * truth.Sites[site].Bytes
		if want == 0 || math.Abs(float64(got-want)) > 0.15*float64(want) {
			t.Errorf("%s:%d holds %d bytes, the program says %d", function, line, got, want)
		} else {
			t.Logf("%s:%d holds %.1f MiB, the program says %.1f", function, line, float64(got)/(1<<20), float64(want)/(1<<20))
		}
	}
}

func inuse(p *profile.Profile) int {
	for i, st := range p.SampleType {
		if st.Type == "inuse_space" {
			return i
		}
	}
	return 0
}

// innermost is the innermost Python frame of a sample.
func innermost(s *profile.Sample) (function string, line int64) {
	for _, l := range s.Location {
		if l.Mapping != nil && l.Mapping.File == "[python]" && len(l.Line) > 0 {
			return l.Line[0].Function.Name, l.Line[0].Line
		}
	}
	return "", 0
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
