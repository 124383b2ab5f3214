// SPDX-License-Identifier: Apache-2.0

package run

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// passed are the signals that somebody may send to us and mean the job. Those that stand for a fault in the receiver
// mean us; SIGTTIN and SIGTTOU come from the terminal, to the whole group, and stop us with the job.
func passed() []os.Signal {
	all := []os.Signal{
		unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTSTP, unix.SIGCONT,
		unix.SIGXCPU, unix.SIGWINCH, unix.SIGPWR, unix.SIGIO, unix.SIGVTALRM,
	}
	// 32 to 34 are the C libraries' own.
	for s := syscall.Signal(35); s <= 64; s++ {
		all = append(all, s)
	}
	var out []os.Signal
	for _, s := range all {
		// What we were started with ignored, such as SIGHUP under nohup, the job has ignored too; a handler would end
		// that. Go remembers it for SIGHUP and SIGINT only.
		if !signal.Ignored(s) {
			out = append(out, s)
		}
	}
	return out
}

// signals are the signals that came to us.
type signals struct {
	in chan os.Signal
}

func openSignals() *signals {
	// A shell without job control starts a background command with SIGINT and SIGQUIT ignored (POSIX XCU 2.11). Go has
	// forgotten the second.
	if signal.Ignored(unix.SIGINT) {
		signal.Ignore(unix.SIGQUIT)
	}
	s := &signals{in: make(chan os.Signal, 64)}
	signal.Notify(s.in, passed()...)
	return s
}

// concernsJobAlone says whether a signal that we received has not reached the job. What a terminal can send is taken to be
// from it while our group has it: Go's os/signal does not tell who sent a signal.
func concernsJobAlone(s syscall.Signal) bool { return !fromTerminal(s) || !foreground() }

// fromTerminal says whether a terminal sends the signal, termios(3) and tty_ioctl(4).
func fromTerminal(s unix.Signal) bool {
	switch s {
	case unix.SIGINT, unix.SIGQUIT, unix.SIGTSTP, unix.SIGHUP, unix.SIGCONT, unix.SIGWINCH:
		return true
	}
	return false
}
