// SPDX-License-Identifier: Apache-2.0

package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// maskVariable carries the signal mask that we were started with over our second start, in hex.
const maskVariable = "HEAPWIRE_RUN_MASK"

// held are the signals that somebody may send to us and mean the job. Those that stand for a fault in the receiver, and
// SIGCHLD, mean us. SIGTTIN and SIGTTOU come from the terminal to the whole group and stop us with the job.
var held = []unix.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTSTP, unix.SIGCONT,
	unix.SIGXCPU, unix.SIGWINCH, unix.SIGPWR, unix.SIGIO, unix.SIGVTALRM,
}

func bit(s unix.Signal) uint64 { return 1 << (uint(s) - 1) }

func heldMask() uint64 {
	var m uint64
	for _, s := range held {
		m |= bit(s)
	}
	return m
}

// sigset turns a mask into the kernel's form: one bit a signal, in words of the machine.
func sigset(mask uint64) *unix.Sigset_t {
	var set unix.Sigset_t
	for i := range set.Val {
		set.Val[i] = 0
	}
	word := bits.UintSize
	for i := 0; i < 64; i++ {
		if mask&(1<<i) != 0 {
			set.Val[i/word] |= 1 << (i % word)
		}
	}
	return &set
}

func fromSigset(set *unix.Sigset_t) uint64 {
	var mask uint64
	word := bits.UintSize
	for i := 0; i < 64; i++ {
		if set.Val[i/word]&(1<<(i%word)) != 0 {
			mask |= 1 << i
		}
	}
	return mask
}

// Main makes sure that the program runs with the signals it passes on blocked in every thread, and returns the mask it
// was started with. To get there it starts itself again, once: Go gives every thread the mask that the program began
// with (os/signal, "Changing the behavior of signals in Go programs"), and offers no way to change it later. Call it
// before anything that a second start would repeat.
func Main() (mask uint64, err error) {
	if text, ok := os.LookupEnv(maskVariable); ok {
		os.Unsetenv(maskVariable)
		mask, err := strconv.ParseUint(text, 16, 64)
		var now unix.Sigset_t
		if err == nil {
			err = unix.PthreadSigmask(unix.SIG_BLOCK, nil, &now)
		}
		if err != nil {
			return 0, fmt.Errorf("reading the signal mask: %w", err)
		}
		if fromSigset(&now)&heldMask() == heldMask() {
			return mask, nil
		}
		return 0, fmt.Errorf("%s is set, but the signals are not blocked", maskVariable)
	}
	runtime.LockOSThread()
	var before unix.Sigset_t
	if err := unix.PthreadSigmask(unix.SIG_BLOCK, sigset(heldMask()), &before); err != nil {
		return 0, fmt.Errorf("blocking signals: %w", err)
	}
	env := Set(os.Environ(), maskVariable, strconv.FormatUint(fromSigset(&before), 16))
	err = syscall.Exec("/proc/self/exe", os.Args, env)
	return 0, fmt.Errorf("starting with signals blocked: %w", err)
}

// received is a signal with what is known about its sender.
type received struct {
	signal     unix.Signal
	fromKernel bool // the terminal's doing, so the whole process group has it
}

// signals reads held signals from a signalfd.
type signals struct {
	file *os.File
	in   chan received
}

func openSignals() (*signals, error) {
	fd, err := unix.Signalfd(-1, sigset(heldMask()), unix.SFD_CLOEXEC|unix.SFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("opening a signalfd: %w", err)
	}
	s := &signals{file: os.NewFile(uintptr(fd), "signalfd"), in: make(chan received, 16)}
	go s.read()
	return s, nil
}

func (s *signals) read() {
	defer close(s.in)
	// struct signalfd_siginfo, signalfd(2): 128 bytes, ssi_signo at 0, ssi_code at 8.
	record := make([]byte, 128)
	for {
		if _, err := io.ReadFull(s.file, record); err != nil {
			return
		}
		const siKernel = 0x80 // SI_KERNEL in asm-generic/siginfo.h; a terminal's signals carry it
		s.in <- received{
			signal:     unix.Signal(binary.NativeEndian.Uint32(record[0:])),
			fromKernel: int32(binary.NativeEndian.Uint32(record[8:])) == siKernel,
		}
	}
}

func (s *signals) close() {
	s.file.Close()
	for range s.in {
	}
}

// withMask calls start on a thread that has the mask, which a process started there inherits. A held signal that comes
// meanwhile is collected, not lost, and not taken as ours.
func withMask(mask uint64, start func() error) ([]os.Signal, error) {
	caught := make(chan os.Signal, 16)
	var watched []os.Signal
	for _, s := range held {
		if mask&bit(s) == 0 && !signal.Ignored(s) {
			watched = append(watched, s)
		}
	}
	if len(watched) > 0 {
		signal.Notify(caught, watched...)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var own unix.Sigset_t
	err := unix.PthreadSigmask(unix.SIG_SETMASK, sigset(mask), &own)
	if err == nil {
		err = start()
		err = errors.Join(err, unix.PthreadSigmask(unix.SIG_SETMASK, &own, nil))
	}
	signal.Stop(caught)
	close(caught)
	var got []os.Signal
	for s := range caught {
		got = append(got, s)
	}
	return got, err
}
