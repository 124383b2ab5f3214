// SPDX-License-Identifier: Apache-2.0

package spool

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/sink"
)

const (
	identityFile = "process.json"

	// DeliveredFolder, inside a process folder, holds the dumps that were acknowledged and kept.
	DeliveredFolder = "delivered"
	// RejectedSuffix is appended to the name of a dump that could not be read; a text file beside it says why.
	RejectedSuffix = ".rejected"
	reasonSuffix   = RejectedSuffix + ".txt"
)

const heapSuffix, snapshotSuffix, sidecarSuffix = ".heap", ".pickle", ".json"

// dumpName is docs/spool.md's <seq>.<reason>.heap, or <seq>.<what>.<kind>.pickle with its .json; a reason that is not known
// yet is no ground to lose a dump.
var dumpName = regexp.MustCompile(`^([0-9]{6,19})\.([a-z][a-z0-9_-]{0,31})(?:\.heap|\.([a-z][a-z0-9_-]{0,15})(?:\.pickle|\.json))$`)

// Process is a process folder that this reader has claimed. Its methods may be called from several goroutines.
type Process struct {
	name  string
	path  string
	from  folderName
	spool *Spool
	dir   *os.File
	owner uint32 // of the folder, and so of what may be in it

	claim   *claim
	journal *journal
}

// Dump is one complete dump file of a process: of its heap, or a snapshot of a device's memory.
type Dump struct {
	Name    string // file name in the process folder
	Seq     uint64
	Reason  string
	Kind    string // of the device whose memory a snapshot shows, such as "cuda"; "" for a heap dump
	Size    int64  // with that of the JSON beside a snapshot
	ModTime time.Time
	Path    string // of a snapshot in a Folder; "" in a process's folder
}

// Sidecar is the name of the JSON beside a snapshot, "" if d is none. It is d's own name where there is no snapshot and
// never will be.
func (d Dump) Sidecar() string {
	if d.Kind == "" {
		return ""
	}
	return strings.TrimSuffix(d.Name, filepath.Ext(d.Name)) + sidecarSuffix
}

// Alone says that there is no snapshot, only what should have been beside it.
func (d Dump) Alone() bool { return d.Kind != "" && strings.HasSuffix(d.Name, sidecarSuffix) }

// Claim takes a process folder for this reader until Release, and returns ErrClaimed if another has it. The claim ends
// with the reader's process, however that ends.
func (s *Spool) Claim(name string) (*Process, error) {
	p, err := s.claim(name)
	if err != nil {
		return nil, fmt.Errorf("claiming %s: %w", filepath.Join(s.path, shown(name)), err)
	}
	return p, nil
}

func (s *Spool) claim(name string) (*Process, error) {
	from, err := parseFolderName(name)
	if err != nil {
		return nil, err
	}
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, owner, err := s.openFolder(root, name)
	if err != nil {
		return nil, err
	}
	held, err := s.lock(dir)
	if err != nil {
		dir.Close()
		return nil, err
	}
	// Between opening and locking, the reader that had the claim may have removed the folder.
	if !identifies(root, name, dir) {
		return nil, errors.Join(os.ErrNotExist, held.release())
	}
	p := &Process{name: name, path: filepath.Join(s.path, name), from: from, spool: s, dir: dir, owner: owner, claim: held}
	// A journal that cannot be read costs repeats, not dumps.
	if p.journal, err = readJournal(dir, journalFile, dumpIn(dir)); err != nil {
		s.opts.Logger.Warn("reading what was delivered before", "folder", p.path, "error", err)
	}
	return p, nil
}

// openFolder opens a process folder for its owner's sake: what was checked is what was opened.
func (s *Spool) openFolder(root *os.File, name string) (*os.File, uint32, error) {
	dir, err := openDir(root, name)
	if err != nil {
		return nil, 0, err
	}
	var st unix.Stat_t
	if err = unix.Fstat(int(dir.Fd()), &st); err == nil {
		err = checkOwner(&st)
	}
	if err != nil {
		dir.Close()
		return nil, 0, err
	}
	return dir, st.Uid, nil
}

// Refresh says that the claim is still wanted. ErrClaimed means that another reader has it now, which only a lock file can
// be lost to, on a file system without locks; os.ErrNotExist that the folder has gone, or another one has its name.
func (p *Process) Refresh() error {
	root, err := p.spool.root()
	if err != nil {
		return err
	}
	defer root.Close()
	if !identifies(root, p.name, p.dir) {
		err = os.ErrNotExist
	} else {
		err = p.claim.refresh()
	}
	if err != nil {
		return fmt.Errorf("refreshing the claim of %s: %w", p.path, err)
	}
	return nil
}

// Release gives the claim back. The process folder stays as it is.
func (p *Process) Release() error { return p.claim.release() }

// Name is the process folder's name, which names one process for good within a boot of its host.
func (p *Process) Name() string { return p.name }

// Path is the process folder's absolute path.
func (p *Process) Path() string { return p.path }

// Alive lists the process folders whose process is known to live, whoever has claimed them.
func (s *Spool) Alive() []string {
	found, _ := s.Processes()
	var alive []string
	for _, name := range found {
		// Reading needs no claim.
		if p, err := s.look(name); err == nil {
			if p.State() == Alive {
				alive = append(alive, name)
			}
			p.dir.Close()
		}
	}
	return alive
}

func (s *Spool) look(name string) (*Process, error) {
	from, err := parseFolderName(name)
	if err != nil {
		return nil, err
	}
	root, err := s.root()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	dir, owner, err := s.openFolder(root, name)
	if err != nil {
		return nil, err
	}
	return &Process{name: name, path: filepath.Join(s.path, name), from: from, spool: s, dir: dir, owner: owner}, nil
}

// Identity reads process.json. What the file does not say is filled in from the folder's name, so the result can be used
// even beside an error.
func (p *Process) Identity() (sink.ProcessJSON, error) {
	var id sink.ProcessJSON
	text, err := readRegular(p.dir, identityFile, sink.MaxProcessJSON)
	if err == nil {
		id, err = sink.ParseProcessJSON(text)
	}
	if err == nil && (id.PID != p.from.pid || id.StartTicks != p.from.start) {
		err = fmt.Errorf("keys \"pid\" and \"start_ticks\": the folder's name has %d and %d, the file has %d and %d", p.from.pid, p.from.start, id.PID, id.StartTicks)
	}
	if err != nil {
		err = fmt.Errorf("reading %s: %w", filepath.Join(p.path, identityFile), err)
	}
	if id.Host == "" {
		id.Host = p.from.host
	}
	id.PID, id.StartTicks = p.from.pid, p.from.start
	return id, err
}

// State says whether the process can still write dumps.
func (p *Process) State() State {
	id, _ := p.Identity()
	return p.spool.machine.state(id.Host, id.PID, id.StartTicks, id.BootID, id.PIDNamespace)
}

// Dumps lists the complete dumps in the order of their sequence numbers. The JSON of a snapshot that is not there is one
// too, when the snapshot will not come: its process is dead, or the JSON says why there is none. Entries that are neither
// dumps nor files of the contract are named in the error; the dumps are returned beside it.
func (p *Process) Dumps() ([]Dump, error) {
	all, err := names(p.dir)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", p.path, err)
	}
	sort.Strings(all)
	var (
		dumps []Dump
		odd   []error
		dead  func() bool
	)
	// The process is judged once, and before the listing that is looked at: what a dead one had renamed is in it.
	if slices.ContainsFunc(all, func(name string) bool { return strings.HasSuffix(name, sidecarSuffix) && !isOwn(name) }) {
		state := p.State()
		dead = func() bool { return state == Dead }
		if all, err = names(p.dir); err != nil {
			return nil, fmt.Errorf("listing %s: %w", p.path, err)
		}
		sort.Strings(all)
	}
	for _, name := range all {
		if isOwn(name) || isMaking(name) || isKept(name) {
			continue
		}
		dump, err := p.dump(name)
		if err == nil && dump.Alone() {
			if _, there := slices.BinarySearch(all, strings.TrimSuffix(name, sidecarSuffix)+snapshotSuffix); there {
				continue
			}
			if p.Settled(name, everySink) {
				_ = remove(p.dir, name, 0)
				continue
			}
			if !dead() && !p.saysWhyNot(name) {
				continue
			}
		}
		switch {
		case err == nil:
			dumps = append(dumps, dump)
		case errors.Is(err, unix.ENOENT):
		default:
			odd = append(odd, fmt.Errorf("%s: left alone: %w", filepath.Join(p.path, shown(name)), err))
		}
	}
	sort.SliceStable(dumps, func(i, j int) bool { return dumps[i].Seq < dumps[j].Seq })
	return dumps, errors.Join(odd...)
}

func (p *Process) dump(name string) (Dump, error) {
	m := dumpName.FindStringSubmatch(name)
	if m == nil {
		return Dump{}, errors.New("want <seq>.<reason>.heap, or <seq>.<what>.<kind>.pickle")
	}
	seq, err := strconv.ParseUint(m[1], 10, 64)
	if err != nil {
		return Dump{}, err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(int(p.dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return Dump{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return Dump{}, errNotRegular
	}
	if err := checkFile(&st, p.owner); err != nil {
		return Dump{}, err
	}
	d := Dump{Name: name, Seq: seq, Reason: m[2], Kind: m[3], Size: st.Size, ModTime: time.Unix(st.Mtim.Unix())}
	if side := d.Sidecar(); side != "" && side != name {
		if unix.Fstatat(int(p.dir.Fd()), side, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			d.Size += st.Size
		}
	}
	return d, nil
}

// saysWhyNot looks into a JSON without a snapshot for the key that says that there will be none.
func (p *Process) saysWhyNot(name string) bool {
	text, err := p.read(name, torchmem.MaxSidecar)
	if err != nil {
		return false
	}
	side, _ := torchmem.ParseSidecar(text)
	return side.Error != ""
}

// ReadSidecar reads the JSON beside a snapshot. It is os.ErrNotExist where there is none, as for a heap dump.
func (p *Process) ReadSidecar(d Dump) ([]byte, error) {
	name := d.Sidecar()
	if name == "" {
		return nil, os.ErrNotExist
	}
	text, err := p.read(name, torchmem.MaxSidecar)
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", filepath.Join(p.path, name), err)
	}
	return text, nil
}

// read reads a small file of the process's.
func (p *Process) read(name string, limit int64) ([]byte, error) {
	f, info, err := openRegular(p.dir, name)
	if err != nil {
		return nil, err
	}
	f.Close()
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		if err := checkFile(&unix.Stat_t{Uid: st.Uid, Mode: st.Mode, Nlink: st.Nlink}, p.owner); err != nil {
			return nil, err
		}
	}
	return readRegular(p.dir, name, limit)
}

func isOwn(name string) bool {
	return name == identityFile || name == journalFile || name == claimFile || name == lockFile
}

func isMaking(name string) bool {
	return strings.HasPrefix(name, ".") && strings.HasSuffix(name, ".tmp")
}

func isKept(name string) bool {
	if name == DeliveredFolder {
		return true
	}
	of, kept := strings.CutSuffix(name, reasonSuffix)
	if !kept {
		of, kept = strings.CutSuffix(name, RejectedSuffix)
	}
	return kept && slices.Contains([]string{heapSuffix, snapshotSuffix, sidecarSuffix}, filepath.Ext(of))
}

// Open opens a dump for reading. A dump larger than Options.MaxDumpBytes is refused.
func (p *Process) Open(d Dump) (io.ReadCloser, error) {
	f, info, err := openRegular(p.dir, d.Name)
	if err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok {
			err = checkFile(&unix.Stat_t{Uid: st.Uid, Mode: st.Mode, Nlink: st.Nlink}, p.owner)
		}
		if err != nil {
			f.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("opening dump %s: %w", filepath.Join(p.path, d.Name), err)
	}
	if limit := p.spool.opts.MaxDumpBytes; info.Size() > limit {
		f.Close()
		return nil, fmt.Errorf("opening dump %s: %w: %d bytes, more than the %d allowed", filepath.Join(p.path, d.Name), ErrTooLarge, info.Size(), limit)
	}
	return f, nil
}

// Acknowledge takes a delivered dump out of the spool, with the JSON beside it: it is removed or, with keep, moved to
// DeliveredFolder.
func (p *Process) Acknowledge(d Dump, keep bool) error {
	err := p.both(d, func(name string) error {
		if keep {
			return p.keep(name)
		}
		return remove(p.dir, name, 0)
	})
	if err != nil {
		return fmt.Errorf("acknowledging dump %s: %w", filepath.Join(p.path, d.Name), err)
	}
	return nil
}

// both does the same with a dump and then with the JSON beside it: the other way round, a reader that is killed in between
// would leave a snapshot without what is known of it. That the JSON needs nothing any more is noted first.
func (p *Process) both(d Dump, do func(name string) error) error {
	side := d.Sidecar()
	if side == "" || side == d.Name {
		return do(d.Name)
	}
	var st unix.Stat_t
	if unix.Fstatat(int(p.dir.Fd()), side, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
		return do(d.Name)
	}
	// Without the note, on a full disk, it is told once more at worst.
	_ = p.Settle(side, everySink)
	err := do(d.Name)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		if failed := do(side); failed != nil && !errors.Is(failed, os.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	return err
}

// everySink stands in the journal for all of them.
const everySink = "*"

func (p *Process) keep(name string) error {
	if err := unix.Mkdirat(int(p.dir.Fd()), DeliveredFolder, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: DeliveredFolder, Err: err}
	}
	to, err := openDir(p.dir, DeliveredFolder)
	if err != nil {
		return err
	}
	defer to.Close()
	giveTo(to, p.owner)
	return rename(p.dir, name, to, name)
}

// Kept lists what Acknowledge and Reject have kept. The names are relative to the process folder.
func (p *Process) Kept() ([]Dump, error) {
	all, err := names(p.dir)
	if err != nil {
		return nil, fmt.Errorf("listing %s: %w", p.path, err)
	}
	var kept []Dump
	add := func(dir *os.File, name, path string) {
		var st unix.Stat_t
		if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			kept = append(kept, Dump{Name: path, Size: st.Size, ModTime: time.Unix(st.Mtim.Unix())})
		}
	}
	for _, name := range all {
		switch {
		case name == DeliveredFolder:
			dir, err := openDir(p.dir, name)
			if err != nil {
				continue
			}
			inside, _ := names(dir)
			for _, in := range inside {
				add(dir, in, DeliveredFolder+"/"+in)
			}
			dir.Close()
		case isKept(name):
			add(p.dir, name, name)
		}
	}
	return kept, nil
}

// Drop removes a dump that nobody will get, with the JSON beside it, or a file that Kept names.
func (p *Process) Drop(d Dump) error {
	err := p.both(d, func(name string) error {
		dir := p.dir
		if in, ok := strings.CutPrefix(name, DeliveredFolder+"/"); ok {
			inside, err := openDir(p.dir, DeliveredFolder)
			if err != nil {
				return err
			}
			defer inside.Close()
			dir, name = inside, in
		}
		return remove(dir, name, 0)
	})
	if err != nil {
		return fmt.Errorf("dropping %s: %w", filepath.Join(p.path, d.Name), err)
	}
	return nil
}

// Reject moves a dump that cannot be read aside, with the JSON beside it, and writes the reason beside it.
func (p *Process) Reject(d Dump, reason string) error {
	fail := func(err error) error {
		return fmt.Errorf("rejecting dump %s: %w", filepath.Join(p.path, d.Name), err)
	}
	if err := p.both(d, func(name string) error { return rename(p.dir, name, p.dir, name+RejectedSuffix) }); err != nil {
		return fail(err)
	}
	f, err := create(p.dir, d.Name+reasonSuffix, unix.O_WRONLY|unix.O_EXCL)
	if err != nil {
		return fail(err)
	}
	_, err = f.WriteString(strings.TrimSpace(reason) + "\n")
	if err = errors.Join(err, f.Close()); err != nil {
		return fail(err)
	}
	return nil
}

// isLonely says whether name is a JSON whose snapshot is not there.
func isLonely(name string, all []string) bool {
	m := dumpName.FindStringSubmatch(name)
	return m != nil && strings.HasSuffix(name, sidecarSuffix) && !slices.Contains(all, strings.TrimSuffix(name, sidecarSuffix)+snapshotSuffix)
}

// RemoveIfDrained removes the folder of a dead process that holds nothing but its identity and unfinished dumps, and
// says whether it did. The claim ends with the folder. The folder of a process that cannot be judged is removed when it
// lay untouched for Options.StaleAfter.
func (p *Process) RemoveIfDrained() (bool, error) {
	fail := func(err error) (bool, error) {
		return false, fmt.Errorf("removing folder %s: %w", p.path, err)
	}
	switch p.State() {
	case Alive:
		return false, nil
	case Unknown:
		info, err := p.dir.Stat()
		if err != nil {
			return fail(err)
		}
		if p.spool.opts.now().Sub(info.ModTime()) < p.spool.opts.StaleAfter {
			return false, nil
		}
	}
	all, err := names(p.dir)
	if err != nil {
		return fail(err)
	}
	for _, name := range all {
		if !isOwn(name) && !isMaking(name) && !isLonely(name, all) {
			return false, nil
		}
	}
	for _, name := range all {
		if isMaking(name) || isLonely(name, all) {
			if err := remove(p.dir, name, 0); err != nil {
				return fail(err)
			}
		}
	}
	root, err := p.spool.root()
	if err != nil {
		return fail(err)
	}
	defer root.Close()
	if !identifies(root, p.name, p.dir) {
		return fail(errors.New("another folder has taken its name"))
	}
	for _, name := range []string{journalFile, claimFile, lockFile, identityFile} {
		if err := remove(p.dir, name, 0); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fail(err)
		}
	}
	if err := remove(root, p.name, unix.AT_REMOVEDIR); err != nil {
		return fail(err)
	}
	return true, p.Release()
}
