/* Where the fields lie that a frame walk reads: CPython 3.8 - 3.15, builds with the GIL, x86-64, in bytes.
 *
 * Source of each row: the version's own headers (Include/cpython/{pystate,frameobject,code,unicodeobject}.h and
 * Include/internal/pycore_{frame,interpframe_structs,tstate}.h of 3.8.18, 3.9.18, 3.10.13, 3.11.7, 3.12.1, 3.13.0, 3.14.10,
 * 3.15.2), printed with offsetof. Layouts hold within a minor version. test/offsets.c prints them again for a Python at hand
 * and the matrix test compares; from 3.13 on the running interpreter's _Py_DebugOffsets is compared at start as well.
 */
#ifndef HW_PYOFFSETS_H
#define HW_PYOFFSETS_H

#include <stdint.h>

struct hw_layout {
	uint8_t minor;
	/* PyThreadState */
	uint8_t ts_frame;  /* 3.8-3.10 frame; 3.13+ current_frame; 0: through ts_cframe */
	uint8_t ts_cframe; /* 3.10-3.12 cframe: the eval loop's _PyCFrame on the C stack */
	uint8_t cf_frame;  /* _PyCFrame.current_frame, 3.11 and 3.12 */
	uint8_t cf_prev;   /* _PyCFrame.previous, 3.10 and 3.11 */
	/* PyFrameObject (3.8-3.10), _PyInterpreterFrame (3.11+) */
	uint8_t f_back, f_code;
	uint8_t f_instr; /* 3.8-3.10 f_lasti; 3.11, 3.12 prev_instr; 3.13+ instr_ptr */
	uint8_t f_owner; /* 3.12+: >= 3 is an entry frame, no Python frame (FRAME_OWNED_BY_CSTACK, _INTERPRETER) */
	uint8_t f_entry; /* 3.11 is_entry: the run of frames of this C call ends here */
	/* PyCodeObject */
	uint8_t co_first, co_file, co_qual /* co_name up to 3.10 */, co_lines;
	uint8_t co_code; /* 3.11+: co_code_adaptive */
	/* PyASCIIObject, PyCompactUnicodeObject: sizes, after which the characters follow */
	uint8_t u_ascii, u_compact;
};

/* Common to all: PyObject.ob_type, PyVarObject.ob_size, PyBytesObject.ob_sval, PyASCIIObject.length and .state. */
enum { HW_OB_TYPE = 8, HW_OB_SIZE = 16, HW_BYTES_DATA = 32, HW_STR_LENGTH = 16, HW_STR_STATE = 32 };

/* PyASCIIObject.state of builds with the GIL: kind in bits 2-4, compact bit 5, ascii bit 6. */
#define HW_STR_KIND(state) ((state) >> 2 & 7)
#define HW_STR_COMPACT(state) ((state) >> 5 & 1)
#define HW_STR_ASCII(state) ((state) >> 6 & 1)

static const struct hw_layout hw_layouts[] = {
	{.minor = 8, .ts_frame = 24, .f_back = 24, .f_code = 32, .f_instr = 104, .co_first = 40, .co_file = 104,
	 .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 9, .ts_frame = 24, .f_back = 24, .f_code = 32, .f_instr = 104, .co_first = 40, .co_file = 104,
	 .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 10, .ts_frame = 24, .ts_cframe = 48, .cf_prev = 8, .f_back = 24, .f_code = 32, .f_instr = 96, .co_first = 40,
	 .co_file = 104, .co_qual = 112, .co_lines = 120, .u_ascii = 48, .u_compact = 72},
	{.minor = 11, .ts_cframe = 56, .cf_frame = 8, .cf_prev = 16, .f_back = 48, .f_code = 32, .f_instr = 56, .f_entry = 68,
	 .co_first = 72, .co_file = 112, .co_qual = 128, .co_lines = 136, .co_code = 184, .u_ascii = 48, .u_compact = 72},
	{.minor = 12, .ts_cframe = 56, .cf_frame = 0, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 70, .co_first = 68,
	 .co_file = 112, .co_qual = 128, .co_lines = 136, .co_code = 192, .u_ascii = 40, .u_compact = 56},
	{.minor = 13, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 70, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 200, .u_ascii = 40, .u_compact = 56},
	{.minor = 14, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 74, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 208, .u_ascii = 40, .u_compact = 56},
	{.minor = 15, .ts_frame = 72, .f_back = 8, .f_code = 0, .f_instr = 56, .f_owner = 74, .co_first = 68, .co_file = 112,
	 .co_qual = 128, .co_lines = 136, .co_code = 208, .u_ascii = 40, .u_compact = 56},
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
