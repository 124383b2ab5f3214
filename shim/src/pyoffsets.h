/* Where the fields lie that a frame walk reads: CPython 3.8 - 3.15, x86-64, in bytes; builds with the GIL, and free-threaded ones
 * from 3.13 on. The latter rows come from the headers alone: no such interpreter was at hand, so they are used only where the
 * interpreter's own description agrees and the look after start finds every frame right (selfcheck.c).
 *
 * Source of each row: the version's own headers (Include/cpython/{pystate,frameobject,code,unicodeobject}.h and
 * Include/internal/pycore_{frame,interpframe_structs,tstate}.h of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0, 3.14.10,
 * 3.15.2), printed with offsetof. Layouts hold within a minor version. test/programs/offsets.c compares them with the headers of
 * every Python at hand; from 3.13 on the running interpreter's _Py_DebugOffsets is compared at start as well.
 */
#ifndef HW_PYOFFSETS_H
#define HW_PYOFFSETS_H

#include <stdbool.h>
#include <stdint.h>

struct hw_layout {
	uint8_t minor;
	bool ft; /* free-threaded */
	/* PyThreadState */
	uint8_t ts_frame;  /* 3.8-3.10 frame; 3.13+ current_frame; 0: through ts_cframe */
	uint8_t ts_cframe; /* 3.10-3.12 cframe: the eval loop's _PyCFrame on the C stack */
	uint8_t cf_frame;  /* _PyCFrame.current_frame, 3.11 and 3.12 */
	uint8_t cf_prev;   /* _PyCFrame.previous, 3.10 and 3.11 */
	/* PyFrameObject (3.8-3.10), _PyInterpreterFrame (3.11+) */
	uint8_t f_back, f_code;
	uint8_t f_instr; /* 3.8-3.10 f_lasti; 3.11, 3.12 prev_instr; 3.13+ instr_ptr */
	uint8_t f_owner; /* 1: a generator's frame (FRAME_OWNED_BY_GENERATOR); 3.12+: >= 3 is an entry frame, no Python frame (FRAME_OWNED_BY_CSTACK, _INTERPRETER) */
	uint8_t f_entry; /* 3.11 is_entry: the run of frames of this C call ends here */
	/* PyCodeObject */
	uint8_t co_first, co_file, co_qual /* co_name up to 3.10 */, co_lines;
	uint8_t co_code; /* 3.11+: co_code_adaptive */
	uint8_t co_traceable; /* 3.11+: _co_firsttraceable, code units before the function is entered */
	/* 3.14+ free-threaded: each thread may run a copy of the bytecode. _PyInterpreterFrame.tlbc_index (int),
	 * PyCodeObject.co_tlbc (_PyCodeArray: size, then entries) */
	uint8_t f_tlbc, co_tlbc;
	/* PyObject.ob_type, PyVarObject.ob_size, PyBytesObject.ob_sval */
	uint8_t ob_type, ob_size, b_data;
	/* PyASCIIObject.length, .state; its size and PyCompactUnicodeObject's, after which the characters follow */
	uint8_t u_length, u_state, u_ascii, u_compact;
	uint8_t u_shift; /* of the state's kind, compact and ascii bits */
};

#define HW_HEADER .ob_type = 8, .ob_size = 16, .b_data = 32, .u_length = 16, .u_state = 32, .u_shift = 2
#define HW_HEADER_FT .ft = true, .ob_type = 24, .ob_size = 32, .b_data = 48, .u_length = 32, .u_state = 48, .u_ascii = 56, .u_compact = 72

/* PyASCIIObject.state: kind (3 bits), compact, ascii. From bit 2 on, and from bit 8 on in free-threaded builds since 3.14, where
 * `interned` is a byte of its own. */
#define HW_STR_KIND(l, state) ((state) >> (l)->u_shift & 7)
#define HW_STR_COMPACT(l, state) ((state) >> ((l)->u_shift + 3) & 1)
#define HW_STR_ASCII(l, state) ((state) >> ((l)->u_shift + 4) & 1)
enum { HW_CODE_ARRAY_ENTRIES = 8 }; /* _PyCodeArray.entries, behind its size */

static const struct hw_layout hw_layouts[] = {
	{.minor = 8, HW_HEADER, .ts_frame = 24, .f_back = 24, .f_code = 32, .f_instr = 104, .co_first = 40, .co_file = 104,
	 .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 9, HW_HEADER, .ts_frame = 24, .f_back = 24, .f_code = 32, .f_instr = 104, .co_first = 40, .co_file = 104,
	 .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 10, HW_HEADER, .ts_frame = 24, .ts_cframe = 48, .cf_prev = 8, .f_back = 24, .f_code = 32, .f_instr = 96, .co_first = 40,
	 .co_file = 104, .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 11, HW_HEADER, .ts_cframe = 56, .cf_frame = 8, .cf_prev = 16, .f_back = 48, .f_code = 32, .f_instr = 56, .f_owner = 69, .f_entry = 68,
	 .co_first = 72, .co_file = 112, .co_qual = 128, .co_lines = 136, .co_code = 184, .co_traceable = 168, .u_ascii = 48, .u_compact = 72},
	{.minor = 12, HW_HEADER, .ts_cframe = 56, .cf_frame = 0, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 70, .co_first = 68,
	 .co_file = 112, .co_qual = 128, .co_lines = 136, .co_code = 192, .co_traceable = 176, .u_ascii = 40, .u_compact = 56},
	{.minor = 13, HW_HEADER, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 70, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 200, .co_traceable = 184, .u_ascii = 40, .u_compact = 56},
	{.minor = 14, HW_HEADER, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 74, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 208, .co_traceable = 192, .u_ascii = 40, .u_compact = 56},
	{.minor = 15, HW_HEADER, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 74, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 208, .co_traceable = 192, .u_ascii = 40, .u_compact = 56},
	{.minor = 13, HW_HEADER_FT, .u_shift = 2, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 70, .co_first = 84,
	 .co_file = 128, .co_qual = 144, .co_lines = 152, .co_code = 216, .co_traceable = 200},
	{.minor = 14, HW_HEADER_FT, .u_shift = 8, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 78, .f_tlbc = 72,
	 .co_first = 84, .co_file = 128, .co_qual = 144, .co_lines = 152, .co_code = 232, .co_traceable = 208, .co_tlbc = 224},
	{.minor = 15, HW_HEADER_FT, .u_shift = 8, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 78, .f_tlbc = 72,
	 .co_first = 84, .co_file = 128, .co_qual = 144, .co_lines = 152, .co_code = 232, .co_traceable = 208, .co_tlbc = 224},
};

/* _Py_DebugOffsets, first member of the exported _PyRuntime from 3.13 on (Include/internal/pycore_runtime.h, from 3.14
 * pycore_debug_offsets.h): cookie "xdebugpy", version hex, free_threaded, then offsets, each a 64-bit word. Its own layout
 * differs per minor version; these are word numbers. */
struct hw_debug_words {
	uint8_t minor;
	uint8_t current_frame, previous, executable, instr_ptr, owner;
	uint8_t filename, qualname, linetable, firstlineno, code_adaptive, ob_type, ob_size, ob_sval, state, length, asciiobject;
};

static const struct hw_debug_words hw_debug_words[] = {
	{.minor = 13, .current_frame = 23, .previous = 29, .executable = 30, .instr_ptr = 31, .owner = 33, .filename = 35,
	 .qualname = 37, .linetable = 38, .firstlineno = 39, .code_adaptive = 43, .ob_type = 45, .ob_size = 65, .ob_sval = 66,
	 .state = 68, .length = 69, .asciiobject = 70},
	{.minor = 14, .current_frame = 26, .previous = 32, .executable = 33, .instr_ptr = 34, .owner = 36, .filename = 40,
	 .qualname = 42, .linetable = 43, .firstlineno = 44, .code_adaptive = 48, .ob_type = 51, .ob_size = 75, .ob_sval = 76,
	 .state = 78, .length = 79, .asciiobject = 80},
	{.minor = 15, .current_frame = 26, .previous = 40, .executable = 41, .instr_ptr = 42, .owner = 44, .filename = 48,
	 .qualname = 50, .linetable = 51, .firstlineno = 52, .code_adaptive = 56, .ob_type = 59, .ob_size = 87, .ob_sval = 88,
	 .state = 90, .length = 91, .asciiobject = 92},
};

#endif
