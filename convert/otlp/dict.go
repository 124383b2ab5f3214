// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"encoding/binary"
	"slices"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/pprofile"
)

// dict fills the dictionary that all profiles of a request share. Each table has a Go map beside it: pprofile's own Set
// functions search the tables from the front, which takes half a second at 4000 stacks.
type dict struct {
	out pprofile.ProfilesDictionary

	strings   map[string]int32
	functions map[functionKey]int32
	mappings  map[mappingKey]int32
	attrs     map[attrKey]int32
	locations map[string]int32 // encoded row → index
	stacks    map[string]int32 // encoded location indices → index

	key []byte // scratch for the encoded keys
}

type functionKey struct {
	name, system, file int32
	startLine          int64
}

type mappingKey struct {
	start, limit, offset uint64
	file, buildID        int32 // buildID: an attribute index
}

type attrKey struct {
	key, unit int32
	value     string // encoded
}

// newDict makes a dictionary with room for what p has. It writes row 0 of every table, which the data model requires to be there and zero, so that index 0 means "none"
// (opentelemetry-collector#15897: NewProfiles leaves it out).
func newDict(out pprofile.ProfilesDictionary, p *profile.Profile) *dict {
	out.StringTable().EnsureCapacity(2*len(p.Function) + 64)
	out.LocationTable().EnsureCapacity(len(p.Location) + 1)
	out.FunctionTable().EnsureCapacity(len(p.Function) + 1)
	out.StackTable().EnsureCapacity(len(p.Sample) + 1)
	out.StringTable().Append("")
	out.MappingTable().AppendEmpty()
	out.LocationTable().AppendEmpty()
	out.FunctionTable().AppendEmpty()
	out.LinkTable().AppendEmpty()
	out.AttributeTable().AppendEmpty()
	out.StackTable().AppendEmpty()
	return &dict{
		out:       out,
		strings:   withZero("", 2*len(p.Function)),
		functions: withZero(functionKey{}, len(p.Function)),
		mappings:  map[mappingKey]int32{},
		attrs:     map[attrKey]int32{},
		locations: make(map[string]int32, len(p.Location)),
		stacks:    withZero("", len(p.Sample)),
	}
}

// withZero makes a table's map that knows row 0.
func withZero[K comparable](zero K, size int) map[K]int32 {
	m := make(map[K]int32, size+1)
	m[zero] = 0
	return m
}

func (d *dict) str(s string) int32 {
	if i, ok := d.strings[s]; ok {
		return i
	}
	table := d.out.StringTable()
	i := int32(table.Len())
	table.Append(s)
	d.strings[s] = i
	return i
}

// attr interns an attribute whose value is made of texts and then numbers: one of them is a plain value, several are an
// array, because a key may occur only once in a message. The unit is UCUM's.
func (d *dict) attr(key string, texts []string, numbers []int64, unit string) int32 {
	b := d.key[:0]
	for _, s := range texts {
		b = append(b, 's')
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	for _, n := range numbers {
		b = append(b, 'i')
		b = binary.AppendVarint(b, n)
	}
	d.key = b
	k := attrKey{d.str(key), d.str(unit), string(b)}
	if i, ok := d.attrs[k]; ok {
		return i
	}
	table := d.out.AttributeTable()
	i := int32(table.Len())
	row := table.AppendEmpty()
	row.SetKeyStrindex(k.key)
	row.SetUnitStrindex(k.unit)
	if len(texts)+len(numbers) == 1 {
		for _, s := range texts {
			row.Value().SetStr(s)
		}
		for _, n := range numbers {
			row.Value().SetInt(n)
		}
	} else {
		values := row.Value().SetEmptySlice()
		for _, s := range texts {
			values.AppendEmpty().SetStr(s)
		}
		for _, n := range numbers {
			values.AppendEmpty().SetInt(n)
		}
	}
	d.attrs[k] = i
	return i
}

func (d *dict) text(key, value string) int32 { return d.attr(key, []string{value}, nil, "") }

func (d *dict) function(name, system, file string, startLine int64) int32 {
	if system == name {
		system = ""
	}
	k := functionKey{d.str(name), d.str(system), d.str(file), startLine}
	if i, ok := d.functions[k]; ok {
		return i
	}
	table := d.out.FunctionTable()
	i := int32(table.Len())
	row := table.AppendEmpty()
	row.SetNameStrindex(k.name)
	row.SetSystemNameStrindex(k.system)
	row.SetFilenameStrindex(k.file)
	row.SetStartLine(startLine)
	d.functions[k] = i
	return i
}

// mapping interns a mapping; buildID is the index of its attribute, 0 for none.
func (d *dict) mapping(start, limit, offset uint64, file string, buildID int32) int32 {
	k := mappingKey{start, limit, offset, d.str(file), buildID}
	if i, ok := d.mappings[k]; ok {
		return i
	}
	table := d.out.MappingTable()
	i := int32(table.Len())
	row := table.AppendEmpty()
	row.SetMemoryStart(start)
	row.SetMemoryLimit(limit)
	row.SetFileOffset(offset)
	row.SetFilenameStrindex(k.file)
	if buildID != 0 {
		row.AttributeIndices().Append(buildID)
	}
	d.mappings[k] = i
	return i
}

// line is one row of a location, innermost inlined function first.
type line struct {
	function     int32
	line, column int64
}

func (d *dict) location(mapping int32, address uint64, lines []line, attrs []int32) int32 {
	b := binary.AppendUvarint(d.key[:0], uint64(mapping))
	b = binary.AppendUvarint(b, address)
	b = binary.AppendUvarint(b, uint64(len(attrs)))
	for _, a := range attrs {
		b = binary.AppendUvarint(b, uint64(a))
	}
	for _, l := range lines {
		b = binary.AppendUvarint(b, uint64(l.function))
		b = binary.AppendVarint(b, l.line)
		b = binary.AppendVarint(b, l.column)
	}
	d.key = b
	if i, ok := d.locations[string(b)]; ok {
		return i
	}
	table := d.out.LocationTable()
	i := int32(table.Len())
	row := table.AppendEmpty()
	row.SetMappingIndex(mapping)
	row.SetAddress(address)
	row.AttributeIndices().Append(attrs...)
	row.Lines().EnsureCapacity(len(lines))
	for _, l := range lines {
		r := row.Lines().AppendEmpty()
		r.SetFunctionIndex(l.function)
		r.SetLine(l.line)
		r.SetColumn(l.column)
	}
	d.locations[string(b)] = i
	return i
}

// stack interns a stack, leaf first. The empty stack is row 0.
func (d *dict) stack(locations []int32) int32 {
	b := d.key[:0]
	for _, l := range locations {
		b = binary.AppendUvarint(b, uint64(l))
	}
	d.key = b
	if i, ok := d.stacks[string(b)]; ok {
		return i
	}
	table := d.out.StackTable()
	i := int32(table.Len())
	table.AppendEmpty().LocationIndices().Append(locations...)
	d.stacks[string(b)] = i
	return i
}

// putSorted writes raw into m in the order of its keys: a Go map's own order would make every request differ.
func putSorted(m pcommon.Map, raw map[string]any) error {
	keys := make([]string, 0, len(raw))
	for k := range raw {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	m.EnsureCapacity(len(keys))
	for _, k := range keys {
		if err := m.PutEmpty(k).FromRaw(raw[k]); err != nil {
			return err
		}
	}
	return nil
}
