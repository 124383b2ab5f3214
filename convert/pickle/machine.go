// SPDX-License-Identifier: Apache-2.0

package pickle

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Errors that [Machine.Run] wraps.
var (
	ErrNotPickle = errors.New("not a pickle of protocol 2 to 5")
	ErrRefused   = errors.New("opcode refused")
	ErrMalformed = errors.New("malformed pickle")
	ErrLimit     = errors.New("limit exceeded")
	ErrTruncated = errors.New("input ends before the pickle does")
)

// Machine reads one pickle.
type Machine struct {
	visitor Visitor
	limits  Limits
	in      input
	texts   texts
	memo    memo
	stack   []Value
	marks   []int32
	runs    runs
	at      int // where the container is that the visitor is being told of
}

// New prepares to read a pickle. Nothing is read before [Machine.Run].
func New(r io.Reader, v Visitor, limits Limits) *Machine {
	return &Machine{
		visitor: v, limits: limits.withDefaults(), in: input{r: r, buf: make([]byte, bufferSize)},
		texts: newTexts(), memo: newMemo(), stack: make([]Value, 1024),
	}
}

// Intern gives a text its number. Numbers count up from 0, so that a visitor that interns the texts it knows before
// [Machine.Run] knows their numbers at compile time.
func (m *Machine) Intern(text string) int64 { return m.texts.find([]byte(text), &m.limits) }

// Text is the text of a number, valid UTF-8.
func (m *Machine) Text(n int64) string { return m.texts.all[n] }

// Texts is how many distinct texts there are.
func (m *Machine) Texts() int { return len(m.texts.all) }

// LeftOut is how many strings read as [LeftOut].
func (m *Machine) LeftOut() int64 { return m.texts.lost }

// Offset is the byte after the last opcode read.
func (m *Machine) Offset() int64 { return m.in.offset() }

// maxSlack is how far a memo index may be ahead of the number of puts so far. Both picklers number without gaps.
const maxSlack = 1 << 10

// maxNumbers is how many numbers the memo may hold.
const maxNumbers = 1 << 16

// longest is the longest opcode whose length one byte tells: SHORT_BINUNICODE and LONG1 with 255 bytes.
const longest = 2 + 255

// Run reads the pickle up to its STOP; what follows is left alone but for read-ahead. Afterwards the machine holds the
// texts only. It runs once.
func (m *Machine) Run() error {
	err := m.run()
	m.memo, m.stack, m.marks, m.runs, m.in.buf, m.in.r = memo{}, nil, nil, runs{}, nil, nil
	return err
}

func (m *Machine) run() error {
	if err := m.header(); err != nil {
		return err
	}
	in, mm := &m.in, &m.memo
	st, sp := m.stack, 0
	buf, pos := in.buf, in.pos
	// From safe on, the next opcode may not be whole; from room on, the stack may be too small for it.
	safe, room := in.end-longest, len(st)-4
	for {
		in.pos = pos
		if pos > safe {
			if ok, err := m.available(); err != nil {
				return err
			} else if !ok {
				return m.truncated()
			}
			buf, pos, safe = in.buf, in.pos, in.end-longest
		}
		if sp > room {
			if len(st) >= m.limits.Stack {
				return m.fail(ErrLimit, "more than %d values wait for their container", m.limits.Stack)
			}
			st = append(st, make([]Value, len(st))...)
			m.stack, room = st, len(st)-4
		}
		op := buf[pos]
		switch op {
		case opBinget, opLongBinget:
			// Gets come in runs: most of a snapshot is stacks, whose frames were seen before.
			for {
				slot, n := uint32(buf[pos+1]), 2
				if op == opLongBinget {
					slot, n = binary.LittleEndian.Uint32(buf[pos+1:]), 5
				}
				object := mm.get(slot)
				if object > objectOpenDict {
					st[sp] = mm.objects[object]
				} else {
					in.pos = pos
					v, err := m.special(object, slot)
					if err != nil {
						return err
					}
					st[sp] = v
				}
				sp++
				pos += n
				if op = buf[pos]; op != opLongBinget && op != opBinget || pos > safe || sp > room {
					break
				}
			}
		case opMemoize:
			if sp == 0 {
				return m.underflow()
			}
			v := &st[sp-1]
			if object := mm.known(v); object == 0 || !mm.push(object) {
				if err := m.put(uint32(mm.used), v); err != nil {
					return err
				}
			} else if v.Kind() != String {
				v.setSlot(uint32(mm.used))
			}
			pos++
		case opBinput, opLongBinput:
			if sp == 0 {
				return m.underflow()
			}
			slot, n := uint32(buf[pos+1]), 2
			if op == opLongBinput {
				slot, n = binary.LittleEndian.Uint32(buf[pos+1:]), 5
			}
			if int64(slot) > m.memo.puts+maxSlack {
				return m.fail(ErrMalformed, "memo slot %d after %d puts", slot, m.memo.puts)
			}
			if err := m.put(slot, &st[sp-1]); err != nil {
				return err
			}
			pos += n
		case opBinint1:
			st[sp] = value(Int, int64(buf[pos+1]))
			sp++
			pos += 2
		case opBinint2:
			st[sp] = value(Int, int64(binary.LittleEndian.Uint16(buf[pos+1:])))
			sp++
			pos += 3
		case opBinint:
			st[sp] = value(Int, int64(int32(binary.LittleEndian.Uint32(buf[pos+1:]))))
			sp++
			pos += 5
		case opLong1:
			n := int(buf[pos+1])
			var v int64
			if n <= 8 {
				u := binary.LittleEndian.Uint64(buf[pos+2:])
				shift := 64 - 8*uint(n)
				v = int64(u<<shift) >> shift // sign extended; 0 for n = 0
			} else {
				var ok bool
				if v, ok = long(buf[pos+2 : pos+2+n]); !ok {
					return m.fail(ErrMalformed, "integer of %d bytes: no more than 64 bits are read", n)
				}
			}
			st[sp] = value(Int, v)
			sp++
			pos += 2 + n
		case opShortBinunicode:
			n := int(buf[pos+1])
			id, ok := int64(0), false
			if n <= 8 {
				id, ok = m.texts.short(binary.LittleEndian.Uint64(buf[pos+2:]), n)
			}
			if !ok {
				id = m.texts.intern(buf[pos+2:pos+2+n], &m.limits)
			}
			st[sp] = value(String, id)
			sp++
			pos += 2 + n
		case opMark:
			if len(m.marks) >= m.limits.Marks {
				return m.fail(ErrLimit, "more than %d containers are open", m.limits.Marks)
			}
			pos++
			if sp > 0 && st[sp-1].Kind() == List && st[sp-1].N == 0 && pos <= safe && (buf[pos] == opLongBinget || buf[pos] == opBinget) {
				if n := gets(buf[pos:min(safe, pos+longestRun)]); n > 0 {
					in.pos = pos
					if ok, err := m.listOfGets(sp, n); err != nil {
						return err
					} else if ok {
						pos += n + 1
						continue
					}
				}
			}
			m.marks = append(m.marks, int32(sp))
		case opEmptyDict:
			st[sp] = value(Dict, 0)
			sp++
			pos++
		case opEmptyList:
			st[sp] = Value{meta: uint64(List) | listFlag}
			sp++
			pos++
		case opSetitems, opSetitem, opAppends, opAppend:
			base := sp - 1
			switch op {
			case opSetitem:
				base = sp - 2
			case opSetitems, opAppends:
				base = m.popMark()
			}
			if base < 1 || len(m.marks) > 0 && base-1 < int(m.marks[len(m.marks)-1]) {
				return m.underflow()
			}
			var err error
			if op == opSetitems || op == opSetitem {
				sp, err = m.pairs(base, sp)
			} else {
				sp, err = m.items(base, sp)
			}
			if err != nil {
				return err
			}
			pos++
		case opDict, opList, opTuple:
			base := m.popMark()
			if base < 0 {
				return m.underflow()
			}
			// The container takes the place before its items.
			copy(st[base+1:sp+1], st[base:sp])
			sp++
			var err error
			switch op {
			case opDict:
				st[base] = value(Dict, 0)
				sp, err = m.pairs(base+1, sp)
			case opList:
				st[base] = Value{meta: uint64(List) | listFlag}
				sp, err = m.items(base+1, sp)
			default:
				err = m.tuple(base, st[base+1:sp])
				sp = base + 1
			}
			if err != nil {
				return err
			}
			pos++
		case opEmptyTuple, opTuple1, opTuple2, opTuple3:
			n := 0
			if op != opEmptyTuple {
				n = int(op) - opTuple1 + 1
			}
			base := sp - n
			if base < 0 || len(m.marks) > 0 && base < int(m.marks[len(m.marks)-1]) {
				return m.underflow()
			}
			var items [3]Value
			copy(items[:], st[base:sp])
			if err := m.tuple(base, items[:n]); err != nil {
				return err
			}
			sp = base + 1
			pos++
		case opNewtrue, opNewfalse:
			st[sp] = value(Bool, int64(opNewfalse-op))
			sp++
			pos++
		case opNone:
			st[sp] = value(None, 0)
			sp++
			pos++
		case opBinfloat:
			st[sp] = value(Float, int64(binary.BigEndian.Uint64(buf[pos+1:])))
			sp++
			pos += 9
		case opFrame:
			// A frame says how far a reader may read ahead; it begins and ends anywhere between two objects.
			pos += 9
		case opBinunicode, opBinunicode8:
			n, text, err := m.sized(operands[op], m.limits.Text, "string")
			if err != nil {
				return err
			}
			buf, pos, safe = in.buf, in.pos, in.end-longest
			st[sp] = value(String, m.texts.intern(text, &m.limits))
			sp++
			pos += n
		case opLong4:
			n, digits, err := m.sized(operands[op], m.limits.Text, "integer")
			if err != nil {
				return err
			}
			buf, pos, safe = in.buf, in.pos, in.end-longest
			v, ok := long(digits)
			if !ok {
				return m.fail(ErrMalformed, "integer of %d bytes: no more than 64 bits are read", len(digits))
			}
			st[sp] = value(Int, v)
			sp++
			pos += n
		case opStop:
			if sp != 1 || len(m.marks) > 0 {
				return m.fail(ErrMalformed, "STOP with %d values and %d marks on the stack: want one value", sp, len(m.marks))
			}
			in.pos = pos + 1
			return nil
		default:
			return fmt.Errorf("pickle: byte %d: opcode %s: %w: only plain data is read", in.offset(), OpcodeName(op), ErrRefused)
		}
	}
}

// header reads the PROTO opcode, with which protocols 2 to 5 begin.
func (m *Machine) header() error {
	if err := m.in.fill(2); err != nil {
		return fmt.Errorf("pickle: byte 0: %w", err)
	}
	b := m.in.buf[:m.in.end]
	switch {
	case len(b) == 0:
		return fmt.Errorf("pickle: byte 0: the input is empty: %w", ErrTruncated)
	case b[0] != opProto || len(b) > 1 && (b[1] < 2 || b[1] > 5):
		return fmt.Errorf("pickle: byte 0: %w", ErrNotPickle)
	case len(b) == 1:
		return m.truncated()
	}
	m.in.pos = 2
	return nil
}

// available tells whether the next opcode is there with its operands, near the end of the buffer or of the input.
func (m *Machine) available() (bool, error) {
	in := &m.in
	if err := in.fill(longest); err != nil {
		return false, fmt.Errorf("pickle: byte %d: %w", in.base+int64(in.end), err)
	}
	have := in.end - in.pos
	if have == 0 {
		return false, nil
	}
	op := in.buf[in.pos]
	need := 1 + int(operands[op])
	if operands[op] < 0 {
		need = 2
		if have >= 2 {
			need += int(in.buf[in.pos+1])
		}
	}
	return have >= need, nil
}

// sized reads a length and checks it before anything of that length is made room for. n is the length of the opcode.
func (m *Machine) sized(lengthBytes int8, limit int, what string) (n int, data []byte, err error) {
	in := &m.in
	var length uint64
	for i := int(lengthBytes); i > 0; i-- {
		length = length<<8 | uint64(in.buf[in.pos+i])
	}
	if length > uint64(limit) {
		return 0, nil, m.fail(ErrLimit, "%s of %d bytes: the limit is %d", what, length, limit)
	}
	n = 1 + int(lengthBytes) + int(length)
	if err := in.fill(n); err != nil {
		return 0, nil, fmt.Errorf("pickle: byte %d: %w", in.base+int64(in.end), err)
	}
	if in.end-in.pos < n {
		return 0, nil, m.truncated()
	}
	return n, in.buf[in.pos+1+int(lengthBytes) : in.pos+n], nil
}

// long reads a little-endian two's complement integer modulo 2^64. Nine bytes hold an unsigned one above 2^63, as
// addresses are on ROCm and XPU; false for what is longer.
func long(b []byte) (int64, bool) {
	var u uint64
	for i, x := range b {
		switch {
		case i < 8:
			u |= uint64(x) << (8 * i)
		case i > 8 || x != 0:
			return 0, false
		}
	}
	if n := len(b); n > 0 && n < 8 && b[n-1] >= 0x80 {
		u |= ^uint64(0) << (8 * n)
	}
	return int64(u), true
}

func (m *Machine) popMark() int {
	n := len(m.marks)
	if n == 0 {
		return -1
	}
	at := m.marks[n-1]
	m.marks = m.marks[:n-1]
	return int(at)
}

// put memoises a value. That of a container which may still grow is put anew when it has.
func (m *Machine) put(slot uint32, v *Value) error {
	mm := &m.memo
	if mm.puts >= int64(m.limits.Memo) || mm.puts > 1<<20+m.in.offset()/8 {
		return m.fail(ErrLimit, "%d memo slots", mm.puts)
	}
	object := mm.object(*v)
	if mm.numbers > maxNumbers {
		return m.fail(ErrLimit, "more than %d numbers are memoised", maxNumbers)
	}
	if len(mm.objects) > m.limits.Objects {
		return m.fail(ErrLimit, "more than %d distinct values are memoised", m.limits.Objects)
	}
	mm.puts++
	if mm.get(slot) != objectUnset {
		m.runs.generation++
	}
	mm.set(slot, object)
	if v.Kind() == List || v.Kind() == Dict {
		v.setSlot(slot + 1)
	}
	return nil
}

// special resolves the objects that a get cannot take as they are.
func (m *Machine) special(object, slot uint32) (Value, error) {
	switch object {
	case objectUnset:
		return Value{}, m.fail(ErrMalformed, "memo slot %d is read before it is written", slot)
	case objectDropped:
		return m.memo.objects[object], nil
	}
	for _, mark := range m.marks {
		if mark > 0 && m.stack[mark-1].slot() == slot+1 {
			return Value{}, m.fail(ErrMalformed, "memo slot %d holds a container that is still open: plain data has no cycles", slot)
		}
	}
	v := m.memo.objects[object]
	v.setSlot(slot + 1)
	return v, nil
}

// pairs tells the visitor what a dict got, and puts what it returns in the dict's place.
func (m *Machine) pairs(base, sp int) (int, error) {
	dict := m.stack[base-1]
	if dict.Kind() != Dict && (dict.Kind() != Ref || dict.isList()) && dict.Kind() != Dropped {
		return 0, m.fail(ErrMalformed, "items are set in a value that is no dict")
	}
	if (sp-base)%2 != 0 {
		return 0, m.fail(ErrMalformed, "a dict gets a key without a value")
	}
	if sp == base {
		return sp, nil
	}
	m.at = base - 1
	v, err := m.visitor.Dict(dict, m.stack[base:sp])
	if err != nil {
		return 0, err
	}
	if v.Kind() == Dict {
		v.N = dict.N + int64(sp-base)/2
	}
	v.meta &= 0xffff
	return m.replace(dict, v), nil
}

// items does the same for a list.
func (m *Machine) items(base, sp int) (int, error) {
	list := m.stack[base-1]
	if !list.isList() {
		return 0, m.fail(ErrMalformed, "items are appended to a value that is no list")
	}
	if sp == base {
		return sp, nil
	}
	if list.slot() != 0 && sp == base+1 && m.stack[base].slot() == list.slot() {
		return 0, m.fail(ErrMalformed, "a list is appended to itself: plain data has no cycles")
	}
	m.at = base - 1
	v, err := m.visitor.List(list, m.stack[base:sp])
	if err != nil {
		return 0, err
	}
	if v.Kind() == List {
		v.N = list.N
		for i := range m.stack[base:sp] {
			v.N += weight(&m.stack[base+i])
		}
	}
	v.meta = v.meta&0xffff | listFlag
	return m.replace(list, v), nil
}

// weight is how many items a value on the stack stands for.
func weight(v *Value) int64 {
	if v.Kind() == Dropped {
		return v.N
	}
	return 1
}

func (m *Machine) tuple(base int, items []Value) error {
	m.at = base
	v, err := m.visitor.Tuple(items)
	if err != nil {
		return err
	}
	v.meta &= 0xffff
	m.stack[base] = v
	return nil
}

// replace puts v in the place of a container and returns the new height of the stack. Dropped items of one list become
// one: torch::jit::Pickler puts all events of a device into one batch.
func (m *Machine) replace(old, v Value) int {
	at := m.at
	if slot := old.slot(); slot != 0 && v.Kind() != Dropped {
		if old.Kind() == Ref {
			m.runs.generation++
		}
		m.memo.set(slot-1, m.memo.object(v))
	}
	if v.Kind() == Dropped {
		v.N = 1
		if base := m.base(); base > 0 && at > base && m.stack[base-1].isList() && m.stack[at-1].Kind() == Dropped {
			m.stack[at-1].N++
			return at
		}
	}
	v.setSlot(old.slot())
	m.stack[at] = v
	return at + 1
}

// base is where the items begin that were put on the stack since the last mark.
func (m *Machine) base() int {
	if n := len(m.marks); n > 0 {
		return int(m.marks[n-1])
	}
	return 0
}

// fail is an error at the opcode being read.
func (m *Machine) fail(kind error, format string, args ...any) error {
	op := m.in.buf[m.in.pos]
	return fmt.Errorf("pickle: byte %d: opcode %s: %w: %s", m.in.offset(), OpcodeName(op), kind, fmt.Sprintf(format, args...))
}

func (m *Machine) underflow() error {
	return m.fail(ErrMalformed, "its operands are not on the stack")
}

func (m *Machine) truncated() error {
	return fmt.Errorf("pickle: byte %d: %w", m.in.base+int64(m.in.end), ErrTruncated)
}
