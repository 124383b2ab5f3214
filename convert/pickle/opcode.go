// SPDX-License-Identifier: Apache-2.0

package pickle

import "fmt"

// Opcodes that are understood.
const (
	opMark            = '('
	opStop            = '.'
	opBinint          = 'J'
	opBinint1         = 'K'
	opBinint2         = 'M'
	opNone            = 'N'
	opBinunicode      = 'X'
	opAppend          = 'a'
	opDict            = 'd'
	opAppends         = 'e'
	opBinget          = 'h'
	opLongBinget      = 'j'
	opList            = 'l'
	opEmptyList       = ']'
	opBinput          = 'q'
	opLongBinput      = 'r'
	opSetitem         = 's'
	opTuple           = 't'
	opEmptyTuple      = ')'
	opSetitems        = 'u'
	opBinfloat        = 'G'
	opEmptyDict       = '}'
	opProto           = 0x80
	opTuple1          = 0x85
	opTuple2          = 0x86
	opTuple3          = 0x87
	opNewtrue         = 0x88
	opNewfalse        = 0x89
	opLong1           = 0x8a
	opLong4           = 0x8b
	opShortBinunicode = 0x8c
	opBinunicode8     = 0x8d
	opMemoize         = 0x94
	opFrame           = 0x95
)

// names are those of Lib/pickletools.py.
var names = map[byte]string{
	'(': "MARK", '.': "STOP", '0': "POP", '1': "POP_MARK", '2': "DUP", 'F': "FLOAT", 'I': "INT", 'J': "BININT",
	'K': "BININT1", 'L': "LONG", 'M': "BININT2", 'N': "NONE", 'P': "PERSID", 'Q': "BINPERSID", 'R': "REDUCE",
	'S': "STRING", 'T': "BINSTRING", 'U': "SHORT_BINSTRING", 'V': "UNICODE", 'X': "BINUNICODE", 'a': "APPEND",
	'b': "BUILD", 'c': "GLOBAL", 'd': "DICT", 'e': "APPENDS", 'g': "GET", 'h': "BINGET", 'i': "INST",
	'j': "LONG_BINGET", 'l': "LIST", ']': "EMPTY_LIST", 'o': "OBJ", 'p': "PUT", 'q': "BINPUT", 'r': "LONG_BINPUT",
	's': "SETITEM", 't': "TUPLE", ')': "EMPTY_TUPLE", 'u': "SETITEMS", 'G': "BINFLOAT", '}': "EMPTY_DICT",
	'B': "BINBYTES", 'C': "SHORT_BINBYTES", 0x80: "PROTO", 0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
	0x85: "TUPLE1", 0x86: "TUPLE2", 0x87: "TUPLE3", 0x88: "NEWTRUE", 0x89: "NEWFALSE", 0x8a: "LONG1", 0x8b: "LONG4",
	0x8c: "SHORT_BINUNICODE", 0x8d: "BINUNICODE8", 0x8e: "BINBYTES8", 0x8f: "EMPTY_SET", 0x90: "ADDITEMS",
	0x91: "FROZENSET", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL", 0x94: "MEMOIZE", 0x95: "FRAME", 0x96: "BYTEARRAY8",
	0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
}

// OpcodeName is the name of an opcode, such as "STACK_GLOBAL", or its value for a byte that is none.
func OpcodeName(op byte) string {
	if n, ok := names[op]; ok {
		return n
	}
	return fmt.Sprintf("0x%02x", op)
}

// operands are the lengths of the operands that do not depend on their own content, -1 for those that do.
var operands = func() (t [256]int8) {
	for op, n := range map[byte]int8{
		opProto: 1, opBinget: 1, opBinput: 1, opBinint1: 1, opBinint2: 2, opLongBinget: 4, opLongBinput: 4, opBinint: 4,
		opFrame: 8, opBinfloat: 8, opShortBinunicode: -1, opLong1: -1, opBinunicode: 4, opLong4: 4, opBinunicode8: 8,
	} {
		t[op] = n
	}
	return t
}()
