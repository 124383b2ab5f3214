// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"hash/maphash"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"
)

// Names of the shim's sections (docs/spool.md).
const (
	sectionMeta     = "HEAPWIRE_META"
	sectionBuildIDs = "HEAPWIRE_BUILD_IDS"
	sectionFrames   = "HEAPWIRE_FRAMES"
	sectionMappings = "HEAPWIRE_MAPPINGS" // only where the whole process was looked at
	sectionGiant    = "HEAPWIRE_GIANT"    // only where there was a giant request
	sectionObjects  = "HEAPWIRE_OBJECTS"  // only where small Python objects were sampled
)

// Section is one section of the shim's and what became of it.
type Section struct {
	Name    string
	Version string
	Offset  int64 // of the line that opens it; -1 for a missing one
	State   SectionState
}

// SectionState says what became of a section.
type SectionState string

const (
	SectionRead    SectionState = "read"    // whole, and its lines used
	SectionSkipped SectionState = "skipped" // of a name or version that this reader does not know
	SectionCut     SectionState = "cut"     // not closed by an empty line; its whole lines were used
	SectionMissing SectionState = "missing" // a dump of the shim's without it
)

// object is a line of HEAPWIRE_BUILD_IDS: one loaded object.
type object struct {
	start, end uint64
	buildID    string
}

// row is a line of HEAPWIRE_FRAMES: one Python function. The function is the profile's once it has an id.
type row struct {
	function profile.Function
	shared   bool // several ids have this row's text
}

const rowBlock = 256

// openSection reads "HEAPWIRE_<NAME>: <version>". A section that is still open was cut.
func (p *parser) openSection(line []byte) bool {
	name, version, ok := bytes.Cut(line, []byte(":"))
	if !ok || !p.lines.whole || bytes.ContainsAny(name, "= \t") {
		return false
	}
	p.closeSection(false)
	p.endStack()
	if p.part == inStacks {
		p.part = inMappings // the mappings are missing, the stacks are over
	}
	p.report.Sections = append(p.report.Sections, Section{
		Name:    strings.ToValidUTF8(string(name), "\uFFFD"),
		Version: strings.ToValidUTF8(string(bytes.TrimSpace(version)), "\uFFFD"),
		Offset:  p.lines.offset,
		State:   SectionSkipped,
	})
	p.section = &p.report.Sections[len(p.report.Sections)-1]
	p.part = inSection
	p.handle = nil
	if p.section.Version != "1" {
		return true
	}
	switch p.section.Name {
	case sectionMeta:
		p.meta.Present = true
		p.handle = p.metaLine
	case sectionBuildIDs:
		p.handle = p.objectLine
	case sectionFrames:
		p.handle = p.frameLine
	case sectionMappings:
		p.handle = p.namedMappingLine
	case sectionGiant:
		p.handle = p.giantLine
	case sectionObjects:
		p.smallBytes = 0
		p.handle = p.smallLine
	}
	return true
}

func (p *parser) closeSection(whole bool) {
	if p.section == nil {
		return
	}
	switch {
	case !whole:
		p.section.State = SectionCut
	case p.handle != nil:
		p.section.State = SectionRead
	}
	p.endStack()
	p.section, p.handle = nil, nil
	p.part = inMappings
}

// objectLine reads "start-end build-id path". Mappings already carry the path.
func (p *parser) objectLine(line []byte) {
	start, end, rest, ok := addressRange(line)
	id, _ := field(rest)
	if !ok || len(id) == 0 {
		p.garbage(line)
		return
	}
	if string(id) == "-" {
		return
	}
	for _, c := range id {
		if hexDigit[c] > 15 {
			p.garbage(line)
			return
		}
	}
	p.objects = append(p.objects, object{start, end, string(id)})
}

// frameLine reads "id<TAB>qualified name<TAB>file<TAB>first line".
func (p *parser) frameLine(line []byte) {
	id, rest, ok := bytes.Cut(line, []byte("\t"))
	name, rest, ok2 := bytes.Cut(rest, []byte("\t"))
	file, first, ok3 := bytes.Cut(rest, []byte("\t"))
	n, tail, ok4 := number(id)
	l, tail2, ok5 := number(first)
	if !ok || !ok2 || !ok3 || !ok4 || !ok5 || len(tail) > 0 || len(tail2) > 0 || n >= 1<<tokenIDBits || l > 1<<31 {
		p.garbage(line)
		return
	}
	if p.rows == nil {
		p.rows, p.rowTexts = map[uint32]*row{}, map[uint64]*row{}
	}
	text := maphash.Bytes(p.seed, line[len(id):])
	r := p.rowTexts[text]
	fileName := p.fileName(file)
	if r == nil || r.function.Filename != fileName || r.function.StartLine != int64(l) || r.function.Name != unescape(name) {
		if len(p.rowBlock) == 0 {
			p.rowBlock = make([]row, rowBlock)
		}
		r, p.rowBlock = &p.rowBlock[0], p.rowBlock[1:]
		r.function.Name, r.function.Filename, r.function.StartLine = unescape(name), fileName, int64(l)
		r.function.SystemName = r.function.Name
		p.rowTexts[text] = r
	} else {
		r.shared = true
	}
	p.rows[uint32(n)] = r
}

// fileName keeps one string for the many functions of a file.
func (p *parser) fileName(b []byte) string {
	if s, ok := p.fileNames[string(b)]; ok {
		return s
	}
	if p.fileNames == nil {
		p.fileNames = map[string]string{}
	}
	s := unescape(b)
	p.fileNames[string(b)] = s
	return s
}

var unescaper = strings.NewReplacer(`\t`, "\t", `\n`, "\n", `\r`, "\r", `\\`, `\`)

func unescape(b []byte) string {
	s := string(b)
	if strings.IndexByte(s, '\\') >= 0 {
		s = unescaper.Replace(s)
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// metaLine reads "key=value".
func (p *parser) metaLine(line []byte) {
	k, v, ok := bytes.Cut(line, []byte("="))
	if !ok || len(k) == 0 {
		p.garbage(line)
		return
	}
	key, value := strings.ToValidUTF8(string(k), "\uFFFD"), strings.ToValidUTF8(string(v), "\uFFFD")
	if !p.meta.set(key, value) {
		p.garbage(line)
	}
}

func parseInt(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil
}
