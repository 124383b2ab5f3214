// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The test binary plays the other parts too: "run" is a program that runs a job as heapwire does, "job" a job that
// tells which signals it gets, "shell" a shell with job control.
func TestMain(m *testing.M) {
	switch os.Getenv("RUN_TEST_PART") {
	case "run":
		playRun(os.Args[1:])
	case "job":
		playJob()
	case "shell":
		playShell(os.Args[1:])
	default:
		asAtATerminal()
	}
	os.Exit(m.Run())
}

// asAtATerminal starts this binary again if it was started with signals ignored, as nohup and a shell's & do: its jobs would inherit
// that, and Go can't undo it.
func asAtATerminal() {
	if !signal.Ignored(syscall.SIGHUP) && !signal.Ignored(syscall.SIGINT) && !signal.Ignored(syscall.SIGQUIT) {
		return
	}
	env, err := exec.LookPath("env")
	self, err2 := os.Executable()
	if err == nil && err2 == nil {
		args := append([]string{"env", "--default-signal=HUP,INT,QUIT", self}, os.Args[1:]...)
		err = syscall.Exec(env, args, os.Environ())
	}
	fmt.Fprintln(os.Stderr, "signals are ignored here, and stay so:", errors.Join(err, err2))
}

func playRun(command []string) {
	env := Unset(os.Environ(), "RUN_TEST_PART")
	if part, ok := Lookup(env, "RUN_TEST_JOB_PART"); ok {
		env = Set(env, "RUN_TEST_PART", part)
	}
	job, err := Start(command, env)
	var start *StartError
	if errors.As(err, &start) {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(start.Status)
	}
	status, by := job.Wait()
	fmt.Fprintln(os.Stderr, Describe(status, by))
	os.Exit(status)
}

// playJob prints each signal that it gets and ends at SIGUSR2.
func playJob() {
	in := make(chan os.Signal, 64)
	var all []os.Signal
	for s := syscall.Signal(1); s <= 64; s++ {
		switch s {
		case unix.SIGKILL, unix.SIGSTOP, unix.SIGURG, unix.SIGCHLD, unix.SIGPROF, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		default:
			all = append(all, s)
		}
	}
	signal.Notify(in, all...)
	fmt.Println("ready", os.Getpid())
	var tell io.Writer = io.Discard
	if path := os.Getenv("RUN_TEST_TELL"); path != "" {
		if f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600); err == nil {
			tell = f
		}
	}
	for s := range in {
		fmt.Fprintln(tell, name(s.(syscall.Signal)))
		fmt.Println(name(s.(syscall.Signal)))
		if s == unix.SIGUSR2 {
			os.Exit(7)
		}
	}
}

func name(s syscall.Signal) string {
	if n := unix.SignalName(s); n != "" {
		return n
	}
	return fmt.Sprintf("signal %d", int(s))
}

// playShell runs a command in the foreground of its terminal, and continues it there whenever it has stopped.
func playShell(command []string) {
	signal.Ignore(unix.SIGTTOU)
	attr := &syscall.ProcAttr{
		Env: Set(os.Environ(), "RUN_TEST_PART", "run"), Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: os.Getenv("RUN_TEST_BACKGROUND") == "", Ctty: 0},
	}
	pid, err := syscall.ForkExec(command[0], command, attr)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("run", pid)
	for {
		var status unix.WaitStatus
		if _, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil); err != nil {
			continue
		}
		if !status.Stopped() {
			fmt.Println("ended", status.ExitStatus())
			os.Exit(0)
		}
		fmt.Println("stopped")
		_ = unix.IoctlSetPointerInt(0, unix.TIOCSPGRP, pid)
		_ = unix.Kill(-pid, unix.SIGCONT)
	}
}

// a runner is a started "run".
type runner struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	stdin  io.WriteCloser
	stderr bytes.Buffer
}

func newRunner(t *testing.T, command ...string) *runner {
	t.Helper()
	r := &runner{t: t, cmd: exec.Command(os.Args[0], command...)}
	r.cmd.Env = Set(os.Environ(), "RUN_TEST_PART", "run")
	r.cmd.Stderr = &r.stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r.cmd.WaitDelay = 10 * time.Second
	return r
}

func newJobRunner(t *testing.T) *runner {
	t.Helper()
	r := newRunner(t, os.Args[0])
	r.cmd.Env = Set(r.cmd.Env, "RUN_TEST_JOB_PART", "job")
	return r
}

func (r *runner) start() {
	r.t.Helper()
	out, err := r.cmd.StdoutPipe()
	if err == nil {
		r.stdin, err = r.cmd.StdinPipe()
	}
	if err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		r.t.Fatal(err)
	}
	watchdog := time.AfterFunc(30*time.Second, func() { _ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL) })
	r.t.Cleanup(func() {
		watchdog.Stop()
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
		_ = r.cmd.Wait()
	})
	r.lines = bufio.NewScanner(out)
}

func (r *runner) line() string {
	r.t.Helper()
	if !r.lines.Scan() {
		err := r.lines.Err()
		_ = unix.Kill(-r.cmd.Process.Pid, unix.SIGKILL)
		_ = r.cmd.Wait() // stderr is whole then
		r.t.Fatalf("no more lines: %v\n%s", err, &r.stderr)
	}
	return r.lines.Text()
}

func (r *runner) ready() int {
	r.t.Helper()
	pid, err := strconv.Atoi(strings.TrimPrefix(r.line(), "ready "))
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

func (r *runner) rest() []string {
	var lines []string
	for r.lines.Scan() {
		lines = append(lines, r.lines.Text())
	}
	return lines
}

func (r *runner) status() int {
	r.t.Helper()
	err := r.cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		r.t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

func (r *runner) send(s syscall.Signal) {
	r.t.Helper()
	if err := unix.Kill(r.cmd.Process.Pid, s); err != nil {
		r.t.Fatal(err)
	}
}

// until polls for what only the process table tells.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for tick := time.NewTicker(5 * time.Millisecond); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

func TestEveryExitStatusIsTheJobs(t *testing.T) {
	t.Parallel()
	for want := range 256 {
		r := newRunner(t, "sh", "-c", "exit "+strconv.Itoa(want))
		err := r.cmd.Run()
		if got := r.cmd.ProcessState.ExitCode(); got != want {
			t.Fatalf("exit status %d (%v), want %d\n%s", got, err, want, &r.stderr)
		}
	}
}

func TestAJobThatASignalEndsGives128AndItsNumber(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{unix.SIGKILL, unix.SIGSEGV, unix.SIGTERM, unix.SIGABRT, unix.SIGINT, unix.SIGPIPE, 40, 64} {
		r := newRunner(t, "sh", "-c", fmt.Sprintf("ulimit -c 0; kill -%d $$", int(s)))
		_ = r.cmd.Run()
		if got, want := r.cmd.ProcessState.ExitCode(), 128+int(s); got != want {
			t.Errorf("%v: exit status %d, want %d", s, got, want)
		}
		if got := r.stderr.String(); got != "killed by "+name(s)+"\n" {
			t.Errorf("%v: described as %q", s, got)
		}
	}
}

func TestWhatCannotBeStartedGivesTheShellsStatus(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := filepath.Join(dir, "plain")
	if err := os.WriteFile(plain, []byte("exit 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("exit $1\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		command []string
		path    string
		status  int
		says    string
	}{
		{[]string{"no-such-command"}, dir, 127, "starting no-such-command: no such file or directory\n"},
		{[]string{dir + "/no/such"}, "", 127, "starting " + dir + "/no/such: no such file or directory\n"},
		{[]string{plain + "/below"}, "", 127, "starting " + plain + "/below: not a directory\n"},
		{[]string{""}, dir, 127, "starting : no such file or directory\n"},
		{[]string{plain}, "", 126, "starting " + plain + ": permission denied\n"},
		{[]string{"plain"}, dir, 126, "starting plain: permission denied\n"},
		{[]string{dir}, "", 126, "starting " + dir + ": permission denied\n"},
		{[]string{"script", "9"}, dir, 9, "exit status 9\n"},
		{[]string{"script", "9"}, "/nowhere:" + dir, 9, "exit status 9\n"},
		{[]string{"sh", "-c", "exit 4"}, "", 4, "exit status 4\n"},
	} {
		r := newRunner(t, c.command...)
		r.cmd.Env = Set(r.cmd.Env, "PATH", c.path)
		_ = r.cmd.Run()
		if got := r.cmd.ProcessState.ExitCode(); got != c.status || r.stderr.String() != c.says {
			t.Errorf("%q in %q: status %d, %q; want %d, %q", c.command, c.path, got, &r.stderr, c.status, c.says)
		}
	}
}

func TestStreamsFilesAndEnvironmentAreTheJobs(t *testing.T) {
	t.Parallel()
	file, err := os.Create(filepath.Join(t.TempDir(), "three"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := newRunner(t, "sh", "-c", "cat; echo to stderr >&2; echo to three >&3; env; ulimit -n; grep -E '^Sig(Blk|Ign)' /proc/self/status; pwd")
	r.cmd.ExtraFiles = []*os.File{file}
	r.cmd.Stdin = strings.NewReader("from stdin\x00\xff\n")
	r.cmd.Env = []string{"RUN_TEST_PART=run", "PATH=" + os.Getenv("PATH"), "A=1", "B=x=y", "A=2", "EMPTY="}
	r.cmd.Dir = filepath.Dir(file.Name())
	out, err := r.cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	plain := exec.Command("sh", "-c", "cat; env; ulimit -n; grep -E '^Sig(Blk|Ign)' /proc/self/status; pwd")
	plain.Stdin = strings.NewReader("from stdin\x00\xff\n")
	plain.Env, plain.Dir = r.cmd.Env[1:], r.cmd.Dir
	want, err := plain.Output()
	if err != nil {
		t.Fatal(err)
	}
	sorted := func(b []byte) string {
		lines := strings.Split(string(b), "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if sorted(out) != sorted(want) {
		t.Errorf("output\n%s\nwithout run\n%s", out, want)
	}
	if got := r.stderr.String(); got != "to stderr\nexit status 0\n" {
		t.Errorf("stderr %q", got)
	}
	if got, _ := os.ReadFile(file.Name()); string(got) != "to three\n" {
		t.Errorf("file 3 got %q", got)
	}
}

// A signal that another process sends to us alone reaches the job, once; SIGUSR2 is the last.
func TestSignalsSentToUsAreSentOn(t *testing.T) {
	t.Parallel()
	r := newJobRunner(t)
	r.start()
	r.ready()
	for _, s := range []syscall.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGALRM, unix.SIGXCPU, unix.SIGWINCH, unix.SIGPWR, 35, 64,
		unix.SIGINT, unix.SIGTERM,
	} {
		r.send(s)
		if got := r.line(); got != name(s) {
			t.Fatalf("the job got %s, want %s", got, name(s))
		}
	}
	r.send(unix.SIGUSR2)
	if got := r.rest(); !slices.Equal(got, []string{"SIGUSR2"}) {
		t.Errorf("the job got %v at last", got)
	}
	if got := r.status(); got != 7 {
		t.Errorf("exit status %d", got)
	}
}

func TestASignalThatWasIgnoredStaysIgnored(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		trap string
		mask uint64
	}{{"HUP", 1}, {"INT QUIT", 6}} {
		cmd := exec.Command("sh", "-c", "trap '' "+c.trap+`; exec "$0" grep SigIgn /proc/self/status`, os.Args[0])
		cmd.Env = Set(os.Environ(), "RUN_TEST_PART", "run")
		out, err := cmd.Output()
		// Whoever runs the tests may ignore other signals.
		var mask uint64
		if _, scanErr := fmt.Sscanf(string(out), "SigIgn:\t%x", &mask); err != nil || scanErr != nil || mask&7 != c.mask {
			t.Errorf("%s ignored: the job has %q, %v; want %#x of HUP, INT and QUIT", c.trap, out, err, c.mask)
		}
	}
}

func TestGrandchildrenDoNotHoldUsUp(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!; exit 3")
	r.start()
	pid, err := strconv.Atoi(r.line())
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Kill(pid, unix.SIGKILL)
	if got := r.status(); got != 3 {
		t.Errorf("exit status %d", got)
	}
	if unix.Kill(pid, 0) != nil {
		t.Error("the grandchild has gone")
	}
}

// processState is the state letter of /proc/<pid>/stat.
func processState(pid int) string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// Without a shell at a terminal nobody would wake us again.
func TestAStoppedJobDoesNotStopUsWithoutATerminal(t *testing.T) {
	t.Parallel()
	r := newJobRunner(t)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.start()
	pid := r.ready()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the job has stopped", func() bool { return processState(pid) == "T" })
	for _, s := range []syscall.Signal{unix.SIGCONT, unix.SIGUSR2} {
		if err := unix.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
		if got := r.line(); got != name(s) {
			t.Fatalf("the job got %s", got)
		}
	}
	if got := r.status(); got != 7 {
		t.Errorf("exit status %d", got)
	}
}

func TestContinuingUsContinuesTheJobOnce(t *testing.T) {
	t.Parallel()
	r := newJobRunner(t)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	r.start()
	pid := r.ready()
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	until(t, "the job has stopped", func() bool { return processState(pid) == "T" })
	r.send(unix.SIGCONT)
	if got := r.line(); got != "SIGCONT" {
		t.Fatalf("the job got %s", got)
	}
	// Another is not for a job that runs. Signal 64 is the last of any that come together.
	r.send(unix.SIGCONT)
	r.send(64)
	if got := r.line(); got != "signal 64" {
		t.Errorf("the job got %s", got)
	}
}

// terminal is a pseudo terminal with our shell in it.
type terminal struct {
	t      *testing.T
	master *os.File
	lines  *bufio.Scanner
	run    int
	job    int
}

func openTerminal(t *testing.T, env []string, command ...string) *terminal {
	t.Helper()
	if len(command) == 0 {
		command = []string{os.Args[0]}
	}
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo terminals: %v", err)
	}
	t.Cleanup(func() { master.Close() })
	control, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var number int
	_ = control.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	settings, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		settings.Lflag &^= unix.ECHO
		settings.Oflag &^= unix.OPOST
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], append([]string{os.Args[0]}, command...)...)
	cmd.Env = append(env, Set(Set(os.Environ(), "RUN_TEST_PART", "shell"), "RUN_TEST_JOB_PART", "job")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	term := &terminal{t: t, master: master, lines: bufio.NewScanner(master)}
	watchdog := time.AfterFunc(30*time.Second, func() { _ = cmd.Process.Kill() })
	t.Cleanup(func() {
		watchdog.Stop()
		if term.run > 0 {
			_ = unix.Kill(-term.run, unix.SIGKILL)
		}
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	// Shell and job tell at the same time.
	for range 2 {
		kind, number, _ := strings.Cut(term.line(), " ")
		n, err := strconv.Atoi(number)
		switch {
		case err == nil && kind == "run":
			term.run = n
		case err == nil && kind == "ready":
			term.job = n
		default:
			t.Fatalf("line %q %q: want run or ready and a number", kind, number)
		}
	}
	return term
}

func (term *terminal) line() string {
	term.t.Helper()
	if !term.lines.Scan() {
		term.t.Fatalf("no more lines: %v", term.lines.Err())
	}
	return term.lines.Text()
}

func (term *terminal) want(lines ...string) {
	term.t.Helper()
	for _, want := range lines {
		if got := term.line(); got != want {
			term.t.Fatalf("line %q, want %q", got, want)
		}
	}
}

func (term *terminal) press(key byte) {
	term.t.Helper()
	if _, err := term.master.Write([]byte{key}); err != nil {
		term.t.Fatal(err)
	}
}

func (term *terminal) end() {
	term.t.Helper()
	if err := unix.Kill(term.run, unix.SIGUSR2); err != nil {
		term.t.Fatal(err)
	}
	term.want("SIGUSR2", "exit status 7", "ended 7")
}

const (
	ctrlC         = 'C' - '@'
	ctrlZ         = 'Z' - '@'
	ctrlBackslash = '\\' - '@'
)

// The marker SIGUSR1, sent to us alone, shows that nothing came between.
func TestTheTerminalsSignalsComeOnce(t *testing.T) {
	t.Parallel()
	term := openTerminal(t, nil)
	for key, signal := range map[byte]string{ctrlC: "SIGINT", ctrlBackslash: "SIGQUIT"} {
		term.press(key)
		term.want(signal)
		if err := unix.Kill(term.run, unix.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		term.want("SIGUSR1")
	}
	term.end()
}

func TestStoppingAtTheTerminalGivesItBackToTheShell(t *testing.T) {
	t.Parallel()
	term := openTerminal(t, nil)
	for range 3 {
		term.press(ctrlZ)
		term.want("stopped", "SIGCONT")
	}
	// The same by a job that stops by itself.
	if err := unix.Kill(term.job, unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	term.want("stopped", "SIGCONT")
	if err := unix.Kill(term.job, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	term.want("stopped", "SIGCONT")
	term.end()
}

// From the background the whole group is stopped, and continues together.
func TestReadingTheTerminalFromTheBackgroundStopsUsOnce(t *testing.T) {
	t.Parallel()
	for range 10 {
		term := openTerminal(t, []string{"RUN_TEST_BACKGROUND=1"}, "sh", "-c", "echo ready $$; read a; echo got $a; read b; echo got $b")
		term.want("stopped")
		for _, text := range []string{"one", "two"} {
			if _, err := term.master.WriteString(text + "\n"); err != nil {
				t.Fatal(err)
			}
			term.want("got " + text)
		}
		term.want("exit status 0", "ended 0")
	}
}

func TestWeSurviveAHangUpAsLongAsTheJobDoes(t *testing.T) {
	t.Parallel()
	told := filepath.Join(t.TempDir(), "told")
	term := openTerminal(t, []string{"RUN_TEST_TELL=" + told})
	term.master.Close()
	has := func(signal string) func() bool {
		return func() bool {
			b, _ := os.ReadFile(told)
			return strings.Contains(string(b), signal+"\n")
		}
	}
	until(t, "the job has SIGHUP", has("SIGHUP"))
	if err := unix.Kill(term.run, unix.SIGUSR2); err != nil {
		t.Fatal(err)
	}
	until(t, "the job has SIGUSR2", has("SIGUSR2"))
	until(t, "we have ended", func() bool { return !slices.Contains([]string{"R", "S", "D", "T"}, processState(term.run)) })
}

// The first process of a pid namespace must wait for orphans.
func TestAsFirstProcessWeReapOrphans(t *testing.T) {
	t.Parallel()
	r := newRunner(t, "sh", "-c", `(sh -c 'exit 0' & ) ; i=0
		while [ $i -lt 100 ]; do if ! grep -sq '^State:.Z' /proc/[0-9]*/status; then exit 6; fi; sleep 0.05; i=$((i+1)); done; exit 1`)
	r.cmd.Args = append([]string{"unshare", "--pid", "--fork", "--mount-proc", os.Args[0]}, r.cmd.Args[1:]...)
	path, err := exec.LookPath("unshare")
	if err != nil || exec.Command(path, "--pid", "--fork", "--mount-proc", "true").Run() != nil {
		t.Skip("no pid namespaces for us here")
	}
	r.cmd.Path = path
	_ = r.cmd.Run()
	if got := r.cmd.ProcessState.ExitCode(); got != 6 {
		t.Errorf("exit status %d, want 6: zombies are left\n%s", got, &r.stderr)
	}
}

func TestPreload(t *testing.T) {
	for _, c := range []struct {
		env     []string
		library string
		want    []string
		err     string
	}{
		{[]string{"A=1"}, "/l/x.so", []string{"A=1", "LD_PRELOAD=/l/x.so"}, ""},
		{[]string{"LD_PRELOAD=/a.so:/b.so", "A=1"}, "/x.so", []string{"A=1", "LD_PRELOAD=/x.so:/a.so:/b.so"}, ""},
		{[]string{"LD_PRELOAD=/a.so /x.so"}, "/x.so", []string{"LD_PRELOAD=/x.so:/a.so"}, ""},
		{[]string{"LD_PRELOAD="}, "/x.so", []string{"LD_PRELOAD=/x.so"}, ""},
		{nil, "/a b/x.so", nil, "cannot hold a path with a blank or a colon"},
		{nil, "/a:b/x.so", nil, "cannot hold a path with a blank or a colon"},
		{nil, "x.so", nil, "want an absolute path"},
	} {
		got, err := Preload(c.env, c.library)
		if !slices.Equal(got, c.want) || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("Preload(%q, %q) = %q, %v; want %q, %s", c.env, c.library, got, err, c.want, c.err)
		}
	}
}

func TestFindLibraryNamesWhatIsMissing(t *testing.T) {
	dir := t.TempDir()
	for _, named := range []string{filepath.Join(dir, "missing.so"), dir, ""} {
		if path, err := FindLibrary(named); err == nil || !strings.Contains(err.Error(), "libheapwire.so") {
			t.Errorf("FindLibrary(%q) = %q, %v", named, path, err)
		}
	}
	file := filepath.Join(dir, "x.so")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if path, err := FindLibrary(file); path != file || err != nil {
		t.Errorf("FindLibrary(%q) = %q, %v", file, path, err)
	}
}
