// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
)

// mapping is a line of /proc/<pid>/maps.
type mapping struct {
	start, end, offset uint64
	file               string
}

// mappingLine reads "start-end perms offset dev inode path", or macOS' "start-end: path". The path is the rest of the
// line with whatever blanks it has, and may be absent.
func (p *parser) mappingLine(line []byte) {
	if len(line) == 0 {
		return
	}
	if !p.lines.whole {
		p.drop(line) // its path may have lost its end, and a wrong file is worse than none
		return
	}
	m, path, ok := parseMapping(line)
	if !ok {
		p.garbage(line)
		return
	}
	if n := len(p.maps); n > 0 && p.maps[n-1].file == string(path) {
		m.file = p.maps[n-1].file
	} else {
		m.file = strings.ToValidUTF8(string(path), "\uFFFD")
	}
	p.maps = append(p.maps, m)
}

func parseMapping(line []byte) (m mapping, path []byte, ok bool) {
	if m.start, m.end, line, ok = addressRange(line); !ok {
		return m, nil, false
	}
	if len(line) > 0 && line[0] == ':' {
		return m, bytes.TrimSpace(line[1:]), true
	}
	perms, line := field(line)
	offset, line := field(line)
	device, line := field(line)
	inode, line := field(line)
	var rest []byte
	if m.offset, rest, ok = hexNumber(offset); !ok || len(rest) > 0 || len(perms) < 4 || len(device) == 0 || len(inode) == 0 {
		return m, nil, false
	}
	return m, trimLeft(line), true
}

// addressRange reads "start-end" in hexadecimal; an empty or backward range is none.
func addressRange(line []byte) (start, end uint64, rest []byte, ok bool) {
	if start, line, ok = hexNumber(bytes.TrimPrefix(line, []byte("0x"))); !ok || len(line) == 0 || line[0] != '-' {
		return 0, 0, nil, false
	}
	if end, line, ok = hexNumber(bytes.TrimPrefix(line[1:], []byte("0x"))); !ok || start >= end {
		return 0, 0, nil, false
	}
	return start, end, line, true
}

// field cuts the next word off a line.
func field(line []byte) (word, rest []byte) {
	line = trimLeft(line)
	if i := bytes.IndexAny(line, " \t"); i >= 0 {
		return line[:i], line[i:]
	}
	return line, nil
}

// beyondMappings tells whether an address lies above the whole list of mappings. The kernel lists them in ascending order
// and the stack is above all code, so a list that ends below code was cut. An odd last frame, which is no address
// (jemalloc PR #2610), is above what any processor addresses.
func (p *parser) beyondMappings(address uint64) bool {
	n := len(p.maps)
	return address < 1<<56 && (n == 0 || address >= p.maps[n-1].end)
}

func (p *parser) sortMaps() {
	byStart := func(a, b mapping) int { return cmp.Compare(a.start, b.start) }
	if !slices.IsSortedFunc(p.maps, byStart) {
		slices.SortStableFunc(p.maps, byStart)
	}
}

// find returns the index of the mapping that holds the address, or -1.
func (p *parser) find(address uint64) int {
	i, found := slices.BinarySearchFunc(p.maps, address, func(m mapping, a uint64) int { return cmp.Compare(m.start, a) })
	if !found {
		i--
	}
	if i < 0 || address >= p.maps[i].end {
		return -1
	}
	return i
}
