// SPDX-License-Identifier: Apache-2.0

package run

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Job is a command that runs in the foreground in our place.
type Job struct {
	pid     int
	pidfd   int
	signals *signals
	done    chan struct{}
	after   chan unix.Signal
	status  int
	signal  unix.Signal
}

// Start starts command with the environment env. The job has our standard streams, process group, terminal, working
// directory, limits, and every file that we were given open. From then on the signals that come to us are the job's.
// The error is a [*StartError].
func Start(command, env []string) (*Job, error) {
	if len(command) == 0 {
		return nil, startError("nothing", unix.ENOENT)
	}
	searched, _ := Lookup(env, "PATH")
	path, err := find(command[0], searched)
	if err != nil {
		return nil, startError(command[0], err)
	}
	j := &Job{pidfd: -1, signals: openSignals(), done: make(chan struct{}), after: make(chan unix.Signal, 16)}
	attr := &syscall.ProcAttr{Env: env, Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{PidFD: &j.pidfd}}
	j.pid, err = syscall.ForkExec(path, command, attr)
	// A script without an interpreter line is the shell's, execvp(3).
	if errors.Is(err, unix.ENOEXEC) {
		script := append([]string{"/bin/sh", path}, command[1:]...)
		j.pid, err = syscall.ForkExec(script[0], script, attr)
	}
	if err != nil {
		return nil, startError(command[0], err)
	}
	ended := make(chan unix.WaitStatus)
	go j.wait(ended)
	go j.supervise(ended)
	return j, nil
}

// PID is the job's process id.
func (j *Job) PID() int { return j.pid }

// Done is closed when the job has ended.
func (j *Job) Done() <-chan struct{} { return j.done }

// Wait waits for the job's end and returns its status as a shell does: what it exited with, or 128 and the number of
// the signal that ended it, which is also returned, 0 if none did.
func (j *Job) Wait() (status int, by unix.Signal) {
	<-j.done
	return j.status, j.signal
}

// After gives the signals that came after the job's end, when there is nobody left to pass them to.
func (j *Job) After() <-chan unix.Signal { return j.after }

func (j *Job) wait(ended chan<- unix.WaitStatus) {
	target := j.pid
	if os.Getpid() == 1 {
		// The first process of a pid namespace inherits every orphan and must wait for it, pid_namespaces(7).
		target = -1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(target, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			// ECHILD: who started us had SIGCHLD ignored, so the kernel kept no status, wait(2).
			ended <- unix.WaitStatus(255 << 8)
			return
		case pid != j.pid:
		case status.Stopped():
			// The shell that waits for us must see the job stopped, or it never takes the terminal back. Without a
			// shell at the terminal nobody would wake us again. For access to the terminal from the background the
			// kernel stops the whole group, termios(3): we see this when we have been continued with the job.
			terminal := status.StopSignal() == unix.SIGTTIN || status.StopSignal() == unix.SIGTTOU
			if !terminal && foreground() && stopped(j.pid) {
				_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
			}
		default:
			ended <- status
			return
		}
	}
}

func (j *Job) supervise(ended <-chan unix.WaitStatus) {
	for {
		select {
		case status := <-ended:
			j.status = status.ExitStatus()
			if status.Signaled() {
				j.signal = status.Signal()
				j.status = 128 + int(j.signal)
			}
			if j.pidfd >= 0 {
				unix.Close(j.pidfd)
			}
			close(j.done)
			for s := range j.signals.in {
				j.keep(s.(syscall.Signal))
			}
			return
		case s := <-j.signals.in:
			// Ended, but not known to have: a signal to it would be nobody's.
			if state := stateOf(j.pid); state == "" || state == "Z" {
				j.keep(s.(syscall.Signal))
				continue
			}
			j.pass(s.(syscall.Signal))
		}
	}
}

// keep holds a signal for whoever reads After.
func (j *Job) keep(s unix.Signal) {
	select {
	case j.after <- s:
	default:
	}
}

// pass sends a signal on to the job unless it has it already.
func (j *Job) pass(s syscall.Signal) {
	if !concernsJobAlone(s) {
		return
	}
	// A shell continues the whole group, one process after another, a supervisor perhaps only us.
	if s == unix.SIGCONT {
		const others = 10 * time.Millisecond
		if foreground() {
			return
		}
		if stopped(j.pid) {
			time.Sleep(others)
		}
		if !stopped(j.pid) {
			return
		}
	}
	if j.pidfd < 0 || errors.Is(unix.PidfdSendSignal(j.pidfd, s, nil, 0), unix.ENOSYS) {
		_ = unix.Kill(j.pid, s)
	}
}

// foreground says whether our process group has the terminal.
func foreground() bool {
	tty, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(tty)
	group, err := unix.IoctlGetInt(tty, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

func stopped(pid int) bool { return stateOf(pid) == "T" }

// stateOf gives the state letter of a process, "" if there is none.
func stateOf(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	// proc_pid_stat(5): the state is the first field after the command's closing parenthesis.
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) < 18 {
		return ""
	}
	// A leader that has ended before its other threads looks like a zombie; fields[17] counts them.
	if fields[0] == "Z" && fields[17] != "0" && fields[17] != "1" {
		return "S"
	}
	return fields[0]
}

// Describe says how a job ended, for people.
func Describe(status int, by unix.Signal) string {
	if by != 0 {
		name := unix.SignalName(by)
		if name == "" {
			name = fmt.Sprintf("signal %d", int(by))
		}
		return "killed by " + name
	}
	return fmt.Sprintf("exit status %d", status)
}

// Modest keeps our own work to a part of the machine, so that the job does not feel it.
func Modest() {
	if runtime.GOMAXPROCS(0) > 2 {
		runtime.GOMAXPROCS(2)
	}
}
