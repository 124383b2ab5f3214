// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sort"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// ErrClaimed is returned for a process folder that another reader has claimed.
var ErrClaimed = errors.New("claimed by another reader")

// LastWords is the file in a spool that an exporter inside a process writes to when its runtime gives up.
const LastWords = "inproc.crash"

// ErrTooLarge is returned for a dump larger than Options.MaxDumpBytes.
var ErrTooLarge = errors.New("too large")

// Options says how a spool is read. The zero value has the defaults named at each field.
type Options struct {
	MaxDumpBytes int64         // a larger dump is refused unread; 4 GiB
	Poll         time.Duration // how often Changes looks without having been told; 5 s
	StaleAfter   time.Duration // a drained folder whose process cannot be judged is removed when untouched for so long; 24 h
	StaleClaim   time.Duration // a lock file of another host is void when untouched for so long, at least 4 × Poll; 2 min
	Logger       *slog.Logger  // nil: silent
	// Claimed is told the file descriptor that holds each claim, and when it is let go. A forked child that keeps it keeps
	// the claim (flock(2)).
	Claimed func(fd int, held bool)

	machine *machine
	now     func() time.Time
	flock   func(fd, how int) error
}

// Spool is a folder of process folders. Its methods may be called from several goroutines.
type Spool struct {
	path    string
	opts    Options
	machine machine

	toldLocks atomic.Bool
}

// Open reads the spool at path, which must be a folder.
func Open(path string, opts Options) (*Spool, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening spool %s: %w", path, err)
	}
	if opts.MaxDumpBytes <= 0 {
		opts.MaxDumpBytes = 4 << 30
	}
	if opts.Poll <= 0 {
		opts.Poll = 5 * time.Second
	}
	if opts.StaleAfter <= 0 {
		opts.StaleAfter = 24 * time.Hour
	}
	if opts.StaleClaim <= 0 {
		opts.StaleClaim = defaultStaleClaim
	}
	opts.StaleClaim = max(opts.StaleClaim, 4*opts.Poll)
	if opts.Claimed == nil {
		opts.Claimed = func(int, bool) {}
	}
	if opts.flock == nil {
		opts.flock = unix.Flock
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	s := &Spool{path: abs, opts: opts, machine: thisMachine()}
	if opts.machine != nil {
		s.machine = *opts.machine
	}
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	root.Close()
	return s, nil
}

// Path is the spool's absolute path.
func (s *Spool) Path() string { return s.path }

// root is opened anew each time: a spool that was deleted and made again goes on.
func (s *Spool) root() (*os.File, error) {
	fd, err := unix.Open(s.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening spool %s: %w", s.path, err)
	}
	return os.NewFile(uintptr(fd), s.path), nil
}

// Processes lists the names of the process folders, sorted. Entries that are none are named in the error; the folders
// are returned beside it.
func (s *Spool) Processes() ([]string, error) {
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	all, err := names(root)
	if err != nil {
		return nil, fmt.Errorf("listing spool %s: %w", s.path, err)
	}
	sort.Strings(all)
	var (
		found []string
		odd   []error
	)
	for _, name := range all {
		if name == LastWords {
			continue
		}
		if err := checkFolder(root, name); err != nil {
			odd = append(odd, fmt.Errorf("%s: left alone: %w", filepath.Join(s.path, shown(name)), err))
			continue
		}
		found = append(found, name)
	}
	return found, errors.Join(odd...)
}

func checkFolder(root *os.File, name string) error {
	if _, err := parseFolderName(name); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(root.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return errors.New("not a folder")
	}
	return checkOwner(&st)
}

// Changes sends when something may have changed: at a file event, and every Options.Poll in any case, because a process
// that dies and a file system without events give none. Sends are merged while nobody receives. The channel is closed
// when ctx ends.
func (s *Spool) Changes(ctx context.Context) <-chan struct{} {
	out := make(chan struct{}, 1)
	watcher, err := fsnotify.NewWatcher()
	if err == nil {
		if err = watcher.Add(s.path); err != nil {
			watcher.Close()
		}
	}
	if err != nil {
		watcher = nil
		s.opts.Logger.Warn("watching the spool failed, looking at intervals instead", "spool", s.path, "interval", s.opts.Poll, "error", err)
	}
	go s.watch(ctx, watcher, out)
	return out
}

func (s *Spool) watch(ctx context.Context, watcher *fsnotify.Watcher, out chan<- struct{}) {
	defer close(out)
	wake := func() {
		select {
		case out <- struct{}{}:
		default:
		}
	}
	var (
		events chan fsnotify.Event
		errs   chan error
	)
	// A watch on a folder made before the folder was watched misses what was put into it meanwhile: every new watch is
	// followed by a wake-up.
	addFolders := func() {}
	if watcher != nil {
		defer watcher.Close()
		events, errs = watcher.Events, watcher.Errors
		addFolders = func() {
			found, _ := s.Processes()
			watched := make(map[string]bool)
			for _, path := range watcher.WatchList() {
				watched[path] = true
			}
			if !watched[s.path] {
				_ = watcher.Add(s.path)
			}
			for _, name := range found {
				if path := filepath.Join(s.path, name); !watched[path] {
					// Fails when the folder has gone or the user's watches are used up (fs.inotify.max_user_watches);
					// the poll sees what the watch does not.
					_ = watcher.Add(path)
				}
			}
		}
	}
	tick := time.NewTicker(s.opts.Poll)
	defer tick.Stop()
	addFolders()
	wake()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			addFolders()
			wake()
		case event, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			if !event.Has(fsnotify.Create) {
				continue
			}
			if filepath.Dir(event.Name) == s.path {
				addFolders()
			}
			wake()
		case err, ok := <-errs:
			if !ok {
				errs = nil
				continue
			}
			s.opts.Logger.Debug("watching the spool", "spool", s.path, "error", err)
			wake()
		}
	}
}
