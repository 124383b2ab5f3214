// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// errNotRegular is returned for an entry that is a link, a pipe, a device or a folder where a file is wanted.
var errNotRegular = errors.New("not a regular file")

// openDir opens a folder relative to another, and fails on a link.
func openDir(parent *os.File, name string) (*os.File, error) {
	fd, err := unix.Openat(int(parent.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// openRegular opens a file for reading relative to a folder. O_NONBLOCK keeps a pipe from blocking the open.
func openRegular(dir *os.File, name string) (*os.File, os.FileInfo, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENXIO) {
			err = errNotRegular
		}
		return nil, nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &os.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

func readRegular(dir *os.File, name string, limit int64) ([]byte, error) {
	f, info, err := openRegular(dir, name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Size() > limit {
		return nil, fmt.Errorf("%d bytes, more than the %d allowed", info.Size(), limit)
	}
	b, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(b)) > limit {
		return nil, fmt.Errorf("more than the %d bytes allowed", limit)
	}
	return b, nil
}

func remove(dir *os.File, name string, flags int) error {
	if err := unix.Unlinkat(int(dir.Fd()), name, flags); err != nil {
		return &os.PathError{Op: "remove", Path: name, Err: err}
	}
	return nil
}

func rename(from *os.File, name string, to *os.File, newName string) error {
	if err := unix.Renameat(int(from.Fd()), name, int(to.Fd()), newName); err != nil {
		return &os.LinkError{Op: "rename", Old: name, New: newName, Err: err}
	}
	return nil
}

// names lists a folder afresh, however often its handle was read before.
func names(dir *os.File) ([]string, error) {
	d, err := openDir(dir, ".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

// identifies reports whether name in dir still is the file behind f.
func identifies(dir *os.File, name string, f *os.File) bool {
	var at, open unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &at, unix.AT_SYMLINK_NOFOLLOW) != nil || unix.Fstat(int(f.Fd()), &open) != nil {
		return false
	}
	return at.Dev == open.Dev && at.Ino == open.Ino
}
