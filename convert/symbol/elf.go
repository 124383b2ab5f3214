// SPDX-License-Identifier: Apache-2.0

package symbol

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"
)

// Bounds on what a file can make the reader do.
const (
	maxSymbols = 8 << 20  // libtorch_cuda.so has about half a million
	maxNote    = 1 << 20  // a build id takes 36 bytes
	maxName    = 64 << 10 // of one symbol
	maxUpdates = 64 << 20 // addresses covered by symbols, counted for each symbol
	maxTies    = 10000    // names read to choose between symbols of one address
)

// read opens the file, checks that it is the one that ran, and finds the symbols of the wanted file offsets.
func (f *file) read(root, name, buildID string, wanted []uint64) (err error) {
	handle, err := open(root, name)
	if err != nil {
		return err
	}
	defer func() { _ = handle.Close() }() // read only: nothing to lose
	return f.parse(handle, buildID, wanted)
}

// open opens a regular file. A path inside a container may lead anywhere, also to a pipe that blocks whoever opens it.
func open(root, name string) (*os.File, error) {
	const flags = os.O_RDONLY | syscall.O_NONBLOCK
	var handle *os.File
	var err error
	if root == "" || root == "/" {
		handle, err = os.OpenFile(name, flags, 0)
	} else {
		var dir *os.Root
		if dir, err = os.OpenRoot(root); err == nil {
			handle, err = dir.OpenFile(strings.TrimLeft(name, "/"), flags, 0)
			_ = dir.Close()
		}
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("the file is not here")
	case err != nil:
		return nil, fmt.Errorf("opening the file: %w", err)
	}
	info, err := handle.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err != nil {
		_ = handle.Close()
		return nil, err
	}
	return handle, nil
}

func (f *file) parse(r io.ReaderAt, buildID string, wanted []uint64) (err error) {
	// debug/elf promises errors for bad files; a panic in it must not take the exporter, which may live in somebody's
	// training process, down.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("reading the ELF file: %v", p)
		}
	}()
	e, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("reading the ELF file: %w", err)
	}
	if buildID != "" {
		switch found := BuildID(e); {
		case found == "":
			return fmt.Errorf("another file is at the path: it has no build id, the one that ran has %s", buildID)
		case !strings.EqualFold(found, buildID):
			return fmt.Errorf("another file is at the path: its build id is %s, the one that ran has %s", found, buildID)
		}
	}
	s := search{elf: e}
	for _, offset := range wanted {
		if v, ok := virtual(e, offset); ok {
			f.vaddrs[offset] = v
			s.wanted = append(s.wanted, v)
		}
	}
	slices.Sort(s.wanted)
	s.wanted = slices.Compact(s.wanted)
	s.cover = make([]candidate, len(s.wanted))
	s.before = make([]candidate, len(s.wanted))
	for _, section := range e.Sections {
		// .dynsym repeats what .symtab has, and is all that a stripped file has.
		if section.Type == elf.SHT_SYMTAB || section.Type == elf.SHT_DYNSYM {
			if err := s.scan(section); err != nil {
				return err
			}
		}
	}
	names := s.names()
	for _, offset := range wanted {
		if v, ok := f.vaddrs[offset]; ok {
			f.names[offset] = names[v]
		}
	}
	return nil
}

// virtual turns an offset in the file into the address that the file's symbols count in, through its program headers:
// the two differ in prelinked and non-PIE files and wherever the linker moved a segment.
func virtual(e *elf.File, offset uint64) (uint64, bool) {
	for _, p := range e.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && offset >= p.Off && offset-p.Off < p.Filesz {
			return offset - p.Off + p.Vaddr, true
		}
	}
	return 0, false
}

// BuildID reads the GNU build id of a file, in hexadecimal; empty if it has none.
func BuildID(e *elf.File) string {
	for _, p := range e.Progs {
		if p.Type == elf.PT_NOTE && p.Filesz <= maxNote {
			if id := buildIDNote(e.ByteOrder, p.ReaderAt, p.Filesz, p.Align); id != "" {
				return id
			}
		}
	}
	for _, s := range e.Sections {
		if s.Type == elf.SHT_NOTE && s.FileSize <= maxNote {
			if id := buildIDNote(e.ByteOrder, s.ReaderAt, s.FileSize, s.Addralign); id != "" {
				return id
			}
		}
	}
	return ""
}

func buildIDNote(order binary.ByteOrder, r io.ReaderAt, size, align uint64) string {
	const typeBuildID = 3 // NT_GNU_BUILD_ID
	if align < 4 || align > 8 {
		align = 4
	}
	data := make([]byte, size)
	if _, err := io.ReadFull(io.NewSectionReader(r, 0, int64(size)), data); err != nil {
		return ""
	}
	up := func(n uint64) uint64 { return (n + align - 1) / align * align }
	for len(data) >= 12 {
		nameSize, descSize := uint64(order.Uint32(data)), uint64(order.Uint32(data[4:]))
		kind := order.Uint32(data[8:])
		start := up(12 + nameSize)
		if start > uint64(len(data)) || descSize > uint64(len(data))-start {
			return ""
		}
		if kind == typeBuildID && bytes.Equal(data[12:12+nameSize], []byte("GNU\x00")) {
			return hex.EncodeToString(data[start : start+descSize])
		}
		data = data[min(up(start+descSize), uint64(len(data))):]
	}
	return ""
}

// candidate is a symbol that may name a wanted address.
type candidate struct {
	start, size uint64
	name        uint32 // in table's strings
	table       *elf.Section
	rank        uint8 // the higher, the better, among symbols of one address
}

// search finds the symbols for a sorted list of addresses in one pass over a symbol table of any order.
type search struct {
	elf    *elf.File
	wanted []uint64
	// cover has the innermost symbol whose size covers the address, before the last symbol that starts in the gap between
	// the address and the one wanted before it.
	cover, before []candidate
	updates, ties int
}

func (s *search) scan(section *elf.Section) error {
	const size32, size64 = 16, 24
	size := uint64(size64)
	if s.elf.Class == elf.ELFCLASS32 {
		size = size32
	}
	if section.Flags&elf.SHF_COMPRESSED != 0 || int(section.Link) >= len(s.elf.Sections) {
		return nil
	}
	strs := s.elf.Sections[section.Link]
	if strs.Type != elf.SHT_STRTAB {
		return nil
	}
	count := section.FileSize / size
	if count > maxSymbols {
		return fmt.Errorf("reading the ELF file: %d symbols, more than %d", count, maxSymbols)
	}
	block := make([]byte, 4096*size)
	for at := uint64(0); at < count*size; at += uint64(len(block)) {
		n, err := section.ReadAt(block, int64(at))
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("reading the ELF file: symbols: %w", err)
		}
		n = int(min(uint64(n), count*size-at))
		for b := block[:n]; uint64(len(b)) >= size; b = b[size:] {
			s.symbol(b, strs)
		}
		if n < len(block) {
			break
		}
	}
	return nil
}

// symbol offers one entry of a symbol table (gABI, "Symbol Table") to the wanted addresses.
func (s *search) symbol(b []byte, strs *elf.Section) {
	order := s.elf.ByteOrder
	c := candidate{name: order.Uint32(b), table: strs}
	var info byte
	var index uint16
	if s.elf.Class == elf.ELFCLASS32 {
		c.start, c.size = uint64(order.Uint32(b[4:])), uint64(order.Uint32(b[8:]))
		info, index = b[12], order.Uint16(b[14:])
	} else {
		info, index = b[4], order.Uint16(b[6:])
		c.start, c.size = order.Uint64(b[8:]), order.Uint64(b[16:])
	}
	if c.name == 0 || elf.SectionIndex(index) == elf.SHN_UNDEF || elf.SectionIndex(index) == elf.SHN_ABS {
		return
	}
	switch elf.ST_TYPE(info) {
	case elf.STT_FUNC:
		c.rank = 16
	case elf.STT_GNU_IFUNC: // the resolver's code, which allocates like any other
		c.rank = 12
	case elf.STT_NOTYPE: // assembly
	default:
		return
	}
	if c.size > 0 {
		c.rank += 32
	}
	switch elf.ST_BIND(info) {
	case elf.STB_GLOBAL:
		c.rank += 2
	case elf.STB_WEAK:
		c.rank++
	}
	first, _ := slices.BinarySearch(s.wanted, c.start)
	if first == len(s.wanted) {
		return
	}
	if s.better(c, s.before[first]) {
		s.before[first] = c
	}
	for i := first; i < len(s.wanted) && s.wanted[i]-c.start < c.size; i++ {
		if s.updates++; s.updates > maxUpdates {
			return
		}
		if s.better(c, s.cover[i]) {
			s.cover[i] = c
		}
	}
}

// better prefers the symbol that starts later, then the higher rank, then the plainer name.
func (s *search) better(c, than candidate) bool {
	switch {
	case than.table == nil:
		return true
	case c.start != than.start:
		return c.start > than.start
	case c.rank != than.rank:
		return c.rank > than.rank
	}
	if s.ties++; s.ties > maxTies {
		return false
	}
	a, b := s.name(c), s.name(than)
	underscores := func(s string) int { return len(s) - len(strings.TrimLeft(s, "_")) }
	if x, y := underscores(a), underscores(b); x != y {
		return x < y
	}
	if len(a) != len(b) {
		return len(a) < len(b)
	}
	return a < b
}

// names reads the names of what was found. An address that no symbol covers belongs to the symbol before it only if that
// one has no size of its own (assembly without .size).
func (s *search) names() map[uint64]string {
	out := make(map[uint64]string, len(s.wanted))
	var last candidate
	for i, address := range s.wanted {
		if b := s.before[i]; b.table != nil {
			last = b
		}
		c := s.cover[i]
		if last.table != nil && last.size == 0 && (c.table == nil || last.start > c.start && last.rank >= 16) && s.sameSegment(last.start, address) {
			c = last
		}
		if c.table != nil {
			out[address] = s.name(c)
		}
	}
	return out
}

func (s *search) sameSegment(a, b uint64) bool {
	for _, p := range s.elf.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && a >= p.Vaddr && a-p.Vaddr < p.Memsz {
			return b >= p.Vaddr && b-p.Vaddr < p.Memsz
		}
	}
	return false
}

func (s *search) name(c candidate) string {
	var name []byte
	chunk := make([]byte, 256)
	for at := int64(c.name); len(name) < maxName; at += int64(len(chunk)) {
		n, err := c.table.ReadAt(chunk, at)
		if i := bytes.IndexByte(chunk[:n], 0); i >= 0 {
			name = append(name, chunk[:i]...)
			break
		}
		name = append(name, chunk[:n]...)
		if err != nil {
			break
		}
	}
	// foo@@VERSION stands in .symtab of libraries with versions.
	text, _, _ := strings.Cut(string(name), "@")
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	return text
}
