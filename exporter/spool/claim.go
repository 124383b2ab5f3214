// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	claimFile = ".claim"
	// lockFile was locked by readers before the folder itself was; it may still lie there.
	lockFile = ".lock"

	maxClaimFile = 1 << 10
)

// claim is the right to a process folder. A lock on the folder itself needs no file, so that it can be had on a full or
// read-only disk too, and the kernel gives it back when its holder ends, however that ends.
//
// A file system without such locks (NFS wants a file that is open for writing, flock(2)) has a lock file instead: it
// names its holder and is touched at every look. It is void when its holder is known to be dead, or, on another host,
// when it was not touched for Options.StaleClaim.
type claim struct {
	dir  *os.File
	file *os.File // the lock file, nil with a lock on the folder

	told func(fd int, held bool)
}

func (s *Spool) lock(dir *os.File) (*claim, error) {
	err := s.opts.flock(int(dir.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		s.opts.Claimed(int(dir.Fd()), true)
		return &claim{dir: dir, told: s.opts.Claimed}, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, ErrClaimed
	}
	if s.toldLocks.CompareAndSwap(false, true) {
		s.opts.Logger.Warn("the file system of the spool locks no folders, using lock files", "spool", s.path, "error", err)
	}
	return s.lockByFile(dir)
}

var claims atomic.Uint64

func (s *Spool) lockByFile(dir *os.File) (*claim, error) {
	own := fmt.Sprintf("%s.%d-%d.tmp", claimFile, os.Getpid(), claims.Add(1))
	file, err := create(dir, own, unix.O_RDWR|unix.O_EXCL)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*claim, error) {
		file.Close()
		_ = remove(dir, own, 0)
		return nil, err
	}
	if _, err := file.WriteString(s.machine.holder()); err != nil {
		return fail(err)
	}
	// A link comes into being whole or not at all on NFS as well, which of O_EXCL is true since version 3 only, open(2).
	for range 2 {
		err := unix.Linkat(int(dir.Fd()), own, int(dir.Fd()), claimFile, 0)
		if err == nil {
			_ = remove(dir, own, 0)
			return &claim{dir: dir, file: file}, nil
		}
		if !errors.Is(err, unix.EEXIST) {
			return fail(&os.LinkError{Op: "link", Old: own, New: claimFile, Err: err})
		}
		if err := s.breakStale(dir, file, own+".old.tmp"); err != nil {
			return fail(err)
		}
	}
	return fail(ErrClaimed)
}

// breakStale takes a void lock file away. fresh was written just now: its time is the file server's.
func (s *Spool) breakStale(dir, fresh *os.File, aside string) error {
	held, info, err := openRegular(dir, claimFile)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer held.Close()
	now, err := fresh.Stat()
	if err != nil {
		return err
	}
	text := make([]byte, maxClaimFile)
	n, _ := held.ReadAt(text, 0)
	switch s.machine.holderState(string(text[:n])) {
	case Alive:
		return ErrClaimed
	case Unknown:
		if now.ModTime().Sub(info.ModTime()) < s.opts.StaleClaim {
			return ErrClaimed
		}
	}
	if err := rename(dir, claimFile, dir, aside); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	// Another reader may have broken it in between, and what was moved is that reader's own.
	if !identifies(dir, aside, held) {
		_ = unix.Linkat(int(dir.Fd()), aside, int(dir.Fd()), claimFile, 0)
		_ = remove(dir, aside, 0)
		return ErrClaimed
	}
	return remove(dir, aside, 0)
}

// refresh keeps a lock file from looking stale, and returns ErrClaimed if another reader took it to be.
func (c *claim) refresh() error {
	if c.file == nil {
		return nil
	}
	if !identifies(c.dir, claimFile, c.file) {
		return ErrClaimed
	}
	now := unix.Timespec{Nsec: unix.UTIME_NOW}
	return unix.UtimesNanoAt(int(c.dir.Fd()), claimFile, []unix.Timespec{now, now}, unix.AT_SYMLINK_NOFOLLOW)
}

func (c *claim) release() error {
	var err error
	if c.told != nil {
		c.told(int(c.dir.Fd()), false)
	}
	if c.file != nil {
		if identifies(c.dir, claimFile, c.file) {
			err = remove(c.dir, claimFile, 0)
		}
		err = errors.Join(err, c.file.Close())
	}
	return errors.Join(err, c.dir.Close())
}

// holder names this process as a lock file does: host, pid, start ticks, boot id.
func (m machine) holder() string {
	var start uint64
	if st, err := m.stat(os.Getpid()); err == nil {
		start = st.start
	}
	return fmt.Sprintf("%s %d %d %s\n", folderHost(m.host), os.Getpid(), start, m.bootID())
}

func (m machine) holderState(text string) State {
	fields := strings.Fields(text)
	if len(fields) != 4 {
		return Unknown
	}
	pid, err := strconv.Atoi(fields[1])
	start, err2 := strconv.ParseUint(fields[2], 10, 64)
	if err != nil || err2 != nil || start == 0 {
		return Unknown
	}
	return m.state(fields[0], pid, start, fields[3], "")
}

const defaultStaleClaim = 2 * time.Minute
