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

// create makes a file of the reader's own in a process folder, and gives it to the folder's owner, or the owner's own
// reader could not use it after root's.
func create(dir *os.File, name string, flags int) (*os.File, error) {
	flags |= unix.O_CREAT | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	fd, err := unix.Openat(int(dir.Fd()), name, flags, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	var st, folder unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		err = unix.Fstat(int(dir.Fd()), &folder)
	}
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errNotRegular
	}
	// A file that is the owner's by another name could be anything of theirs that root must not write to for them.
	if err == nil && st.Nlink > 1 {
		err = errLinked
	}
	if err != nil {
		f.Close()
		return nil, &os.PathError{Op: "create", Path: name, Err: err}
	}
	giveTo(f, folder.Uid)
	return f, nil
}

// giveTo makes owner the owner of a file that root has made. It fails where root is mapped to nobody; then the file was
// not made as root either.
func giveTo(f *os.File, owner uint32) {
	if os.Geteuid() == 0 {
		_ = unix.Fchown(int(f.Fd()), int(owner), -1)
	}
}

// errLinked is returned for a file with more than one name: anybody may link a file of another user's into a folder of
// their own, where fs.protected_hardlinks is off (proc_sys_fs(5)).
var errLinked = errors.New("has another name elsewhere (hard link)")

// checkOwner says what keeps a folder from being read: it is another user's, or others than its owner may write to it.
// Root reads everybody's.
func checkOwner(st *unix.Stat_t) error {
	if uid := os.Geteuid(); uid != 0 && int(st.Uid) != uid {
		return fmt.Errorf("belongs to user %d", st.Uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("mode %04o: others than its owner may write to it", st.Mode&0o7777)
	}
	return nil
}

// checkFile says what keeps a file in a folder of owner's from being read.
func checkFile(st *unix.Stat_t, owner uint32) error {
	switch {
	case st.Uid != owner:
		return fmt.Errorf("belongs to user %d, its folder to user %d", st.Uid, owner)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("mode %04o: others than its owner may write to it", st.Mode&0o7777)
	case st.Nlink > 1:
		return errLinked
	}
	return nil
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
	all, err := d.Readdirnames(maxNames)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if len(all) == maxNames {
		return nil, fmt.Errorf("%d entries or more", maxNames)
	}
	return all, err
}

// maxNames bounds the memory for a listing, whatever somebody puts into a folder.
const maxNames = 1 << 18

// identifies reports whether name in dir still is the file behind f.
func identifies(dir *os.File, name string, f *os.File) bool {
	var at, open unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &at, unix.AT_SYMLINK_NOFOLLOW) != nil || unix.Fstat(int(f.Fd()), &open) != nil {
		return false
	}
	return at.Dev == open.Dev && at.Ino == open.Ino
}
