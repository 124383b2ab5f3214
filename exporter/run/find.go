// SPDX-License-Identifier: Apache-2.0

package run

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Exit statuses of a command that could not be started, as POSIX gives them to shells (XCU 2.8.2).
const (
	StatusCannotExecute = 126
	StatusNotFound      = 127
)

// StartError says why a job could not be started, and the exit status that says the same.
type StartError struct {
	Command string
	Status  int
	Err     error
}

func (e *StartError) Error() string { return "starting " + e.Command + ": " + e.Err.Error() }
func (e *StartError) Unwrap() error { return e.Err }

func startError(command string, err error) *StartError {
	status := StatusCannotExecute
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		status = StatusNotFound
	}
	return &StartError{Command: command, Status: status, Err: err}
}

// find does what execvp(3) does: a name with a slash is a path, any other is looked for in PATH, where a file that may
// not be executed is passed over, but remembered.
func find(command, path string) (string, error) {
	if command == "" {
		return "", unix.ENOENT
	}
	if strings.Contains(command, "/") {
		return command, executable(command)
	}
	if path == "" {
		path = "/bin:/usr/bin"
	}
	var denied error
	for _, dir := range filepath.SplitList(path) {
		if dir == "" {
			dir = "."
		}
		candidate := dir + "/" + command
		switch err := executable(candidate); {
		case err == nil:
			return candidate, nil
		case errors.Is(err, unix.EACCES) && denied == nil:
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", unix.ENOENT
}

func executable(path string) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return unix.EACCES
	}
	return unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS)
}
