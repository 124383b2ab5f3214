// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	// FolderJournal, in a folder of snapshots, says which of them were delivered.
	FolderJournal = ".heapwire-delivery"

	maxFolderDepth = 4
	maxFolderFiles = 1 << 16
	// quiet is how long a file must not have changed to be taken for complete.
	quiet = time.Second
)

// Folder is a folder, and folders in it, into which others write snapshots: PyTorch's own, verl's, torch_npu's. It is read
// like a process's folder, but nothing in it is ever moved or removed; what was delivered is noted in FolderJournal, so
// that no file is delivered twice, whoever reads the folder next.
//
// A file is taken when it begins and ends like a pickle and has not changed for a second: those who write into such
// folders write under the final name.
type Folder struct {
	path string
	opts FolderOptions

	mu      sync.Mutex
	dir     *os.File
	over    bool                 // nobody writes any more
	seen    map[string]time.Time // when first, by name with version
	partial map[string]bool      // looked complete, and were not
	journal *journal
}

// FolderOptions says who writes into a folder.
type FolderOptions struct {
	MaxBytes int64 // a larger file is refused; 4 GiB
	// ServiceName and ResourceAttributes are OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
	ServiceName, ResourceAttributes string
	// Names, if set, is how rank, process and step are read from a file's path, beside the names that are known anyway.
	Names  *regexp.Regexp
	Logger *slog.Logger // nil: silent

	now func() time.Time
}

// OpenFolder reads the snapshots below path, which need not be there yet.
func OpenFolder(path string, opts FolderOptions) (*Folder, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("opening folder %s: %w", path, err)
	}
	if info, err := os.Stat(abs); err == nil && !info.IsDir() {
		return nil, fmt.Errorf("opening folder %s: is a file", path)
	}
	if opts.MaxBytes <= 0 {
		opts.MaxBytes = 4 << 30
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.now == nil {
		opts.now = time.Now
	}
	return &Folder{path: abs, opts: opts, seen: map[string]time.Time{}, partial: map[string]bool{}}, nil
}

// Claim takes the folder for this reader until Release, and returns ErrClaimed if another has it, os.ErrNotExist while it
// is not there.
func (f *Folder) Claim() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	fd, err := unix.Open(f.path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: f.path, Err: err}
	}
	dir := os.NewFile(uintptr(fd), f.path)
	switch err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		dir.Close()
		return ErrClaimed
	case err != nil:
		// NFS locks no folders: two readers of one folder may then deliver a file each.
		f.opts.Logger.Debug("the file system locks no folders", "folder", f.path, "error", err)
	}
	f.dir = dir
	if f.journal, err = readJournal(dir, FolderJournal, f.exists); err != nil {
		f.opts.Logger.Warn("reading what was delivered before", "folder", f.path, "error", err)
	}
	return nil
}

// Refresh says whether the folder is still the one that was claimed.
func (f *Folder) Refresh() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	there, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	claimed, err := f.dir.Stat()
	if err == nil && !os.SameFile(there, claimed) {
		err = fmt.Errorf("%s: %w: another folder has its name", f.path, os.ErrNotExist)
	}
	return err
}

// Release gives the folder back.
func (f *Folder) Release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.dir.Close()
}

// Name names the folder among the process folders of a spool, whose names are different.
func (f *Folder) Name() string { return "snapshots " + f.path }

// Path is the folder's absolute path.
func (f *Folder) Path() string { return f.path }

// Identity is what is known of whoever writes into the folder. It may be many.
func (f *Folder) Identity() (sink.ProcessJSON, error) {
	host, err := os.Hostname()
	return sink.ProcessJSON{Host: host, ServiceName: f.opts.ServiceName, ResourceAttributes: f.opts.ResourceAttributes}, err
}

// FileName is what the path of one of the folder's files tells.
func (f *Folder) FileName(path string) torchmem.FileName {
	name := torchmem.ParseFileName(path)
	if f.opts.Names != nil {
		name = name.Match(path, f.opts.Names)
	}
	return name
}

// State is Unknown: the folder is no process's.
func (f *Folder) State() State { return Unknown }

// Cgroup is "": see State.
func (f *Folder) Cgroup() string { return "" }

// NoWriters says that nobody writes into the folder any more: a file that ends like a pickle is complete, and of any other
// it is said that it is left alone.
func (f *Folder) NoWriters() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
}

// Incomplete says that a dump looked complete and was not. It is listed again when it has changed.
func (f *Folder) Incomplete(d Dump) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.partial[d.Name] = true
}

// Dumps lists the complete snapshots that were not delivered yet, oldest first. A Dump's name has the file's size and time
// in it: a file that is written anew is another dump.
func (f *Folder) Dumps() ([]Dump, error) {
	var dumps []Dump
	var odd []error
	here := map[string]bool{}
	files := 0
	walked := filepath.WalkDir(f.path, func(path string, entry fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(f.path, path)
		switch {
		case err != nil:
			if !errors.Is(err, os.ErrNotExist) {
				odd = append(odd, err)
			}
			if entry != nil && entry.IsDir() {
				return fs.SkipDir
			}
			return nil
		case entry.IsDir() && strings.Count(rel, "/") >= maxFolderDepth:
			return fs.SkipDir
		case !entry.Type().IsRegular() || !torchmem.IsFileName(entry.Name(), false):
			return nil
		}
		if files++; files > maxFolderFiles {
			return fmt.Errorf("more than %d snapshots", maxFolderFiles)
		}
		info, err := entry.Info()
		if err != nil {
			return nil
		}
		d := Dump{
			Name: url.PathEscape(rel) + "@" + version(info),
			Size: info.Size(), ModTime: info.ModTime(), Path: path,
		}
		here[d.Name] = true
		if f.Settled(d.Name, everySink) {
			return nil
		}
		if whole, err := f.complete(d, path); err != nil {
			odd = append(odd, err)
		} else if whole {
			dumps = append(dumps, d)
		}
		return nil
	})
	f.mu.Lock()
	for name := range f.seen {
		if !here[name] {
			delete(f.seen, name)
			delete(f.partial, name)
		}
	}
	f.mu.Unlock()
	slices.SortStableFunc(dumps, func(a, b Dump) int { return a.ModTime.Compare(b.ModTime) })
	if walked != nil {
		odd = append(odd, fmt.Errorf("listing %s: %w", f.path, walked))
	}
	return dumps, errors.Join(odd...)
}

// complete says whether a file can be read now. An error says that it never will be.
func (f *Folder) complete(d Dump, path string) (bool, error) {
	f.mu.Lock()
	now := f.opts.now()
	since, known := f.seen[d.Name]
	if !known {
		since = now
		f.seen[d.Name] = since
	}
	over, partial := f.over, f.partial[d.Name]
	f.mu.Unlock()
	// The clock of a file server may be another than ours: how long we have known the file counts too.
	old := now.Sub(since) >= quiet || now.Sub(d.ModTime) >= quiet
	if !partial && !over && !old {
		return false, nil
	}
	if !partial {
		whole, err := looksWhole(path, d.Size)
		if err != nil || whole {
			return whole, nil
		}
	}
	if over {
		return false, fmt.Errorf("%s: left alone: it ends before its end; heapwire push sends what is whole of it", path)
	}
	return false, nil
}

// looksWhole says whether a file begins and ends as a pickle does: PROTO is 0x80, STOP "." (CPython's Lib/pickletools.py).
func looksWhole(path string, size int64) (bool, error) {
	if size < 2 {
		return false, nil
	}
	file, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer file.Close()
	var ends [2]byte
	if _, err := file.ReadAt(ends[:1], 0); err != nil {
		return false, err
	}
	if _, err := file.ReadAt(ends[1:], size-1); err != nil {
		return false, err
	}
	return ends[0] == 0x80 && ends[1] == '.', nil
}

// Open opens a snapshot. It fails if the file is no longer the one that was listed.
func (f *Folder) Open(d Dump) (io.ReadCloser, error) {
	fail := func(err error) (io.ReadCloser, error) {
		return nil, fmt.Errorf("opening snapshot %s: %w", d.Path, err)
	}
	if d.Size > f.opts.MaxBytes {
		return fail(fmt.Errorf("%w: %d bytes, more than the %d allowed", ErrTooLarge, d.Size, f.opts.MaxBytes))
	}
	fd, err := unix.Open(d.Path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	file := os.NewFile(uintptr(fd), d.Path)
	info, err := file.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = errNotRegular
	case info.Size() != d.Size || !info.ModTime().Equal(d.ModTime):
		err = errors.New("it has changed since it was listed")
	default:
		return file, nil
	}
	file.Close()
	return fail(err)
}

// ReadSidecar reads the JSON beside a snapshot; os.ErrNotExist where there is none.
func (f *Folder) ReadSidecar(d Dump) ([]byte, error) {
	dir, err := os.Open(filepath.Dir(d.Path))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	name := torchmem.SidecarName(filepath.Base(d.Path))
	text, err := readRegular(dir, name, torchmem.MaxSidecar)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(dir.Name(), name), err)
	}
	return text, nil
}

// Acknowledge notes that a snapshot was delivered. The file stays.
func (f *Folder) Acknowledge(d Dump, _ bool) error { return f.Settle(d.Name, everySink) }

// Reject notes that a file is no snapshot. It stays.
func (f *Folder) Reject(d Dump, _ string) error { return f.Settle(d.Name, everySink) }

// Drop does nothing: the files are not ours.
func (f *Folder) Drop(Dump) error { return nil }

// Kept is empty: see Drop.
func (f *Folder) Kept() ([]Dump, error) { return nil, nil }

// RemoveIfDrained removes nothing.
func (f *Folder) RemoveIfDrained() (bool, error) { return false, nil }

// Settled says whether a sink was done with a snapshot, in this reader's life or before.
func (f *Folder) Settled(dump, sink string) bool { return f.journal.has(dump, sink) }

// Settle notes that a sink is done with a snapshot, or a Part of it.
func (f *Folder) Settle(dump, sink string) error { return f.noted(f.journal.done(dump, sink)) }

// Note is the text that SetNote kept last.
func (f *Folder) Note() string { return f.journal.text() }

// SetNote keeps a text of one line for the next reader.
func (f *Folder) SetNote(text string) error { return f.noted(f.journal.setNote(text)) }

// exists says whether a file is as it was when a dump was named after it.
func (f *Folder) exists(dump string) bool {
	at := strings.LastIndexByte(dump, '@')
	if at < 0 {
		return true
	}
	rel, err := url.PathUnescape(dump[:at])
	if err != nil {
		return false
	}
	info, err := os.Lstat(filepath.Join(f.path, rel))
	return err == nil && dump[at+1:] == version(info)
}

func version(info fs.FileInfo) string {
	return strconv.FormatInt(info.Size(), 10) + "-" + strconv.FormatInt(info.ModTime().UnixNano(), 10)
}

func (f *Folder) noted(err error) error {
	if err != nil {
		return fmt.Errorf("writing %s: %w", filepath.Join(f.path, FolderJournal), err)
	}
	return nil
}
