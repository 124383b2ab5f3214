/* offsets.c: the rows of pyoffsets.h against the headers of the interpreter that this is compiled for. */
#define Py_BUILD_CORE 1
#include <Python.h>
#if PY_MINOR_VERSION >= 14
#include <internal/pycore_interpframe.h>
#elif PY_MINOR_VERSION >= 11
#include <internal/pycore_frame.h>
#else
#include <frameobject.h>
#endif

#include "../../src/pyoffsets.h"

#include <stddef.h>
#include <stdio.h>

#ifdef Py_GIL_DISABLED
#define FREE_THREADED true
#else
#define FREE_THREADED false
#endif

static int wrong, compared;

static void same(const char *field, unsigned table, size_t headers)
{
	compared++;
	if (table == headers)
		return;
	wrong++;
	printf("3.%d: %s is at %zu, the table says %u\n", PY_MINOR_VERSION, field, headers, table);
}

#define AT(field, type, member) same(#type "." #member, l->field, offsetof(type, member))

int main(void)
{
	const struct hw_layout *l = NULL;
	for (size_t i = 0; i < sizeof hw_layouts / sizeof *hw_layouts; i++)
		if (hw_layouts[i].minor == PY_MINOR_VERSION && hw_layouts[i].ft == FREE_THREADED)
			l = &hw_layouts[i];
	if (!l) {
		printf("no row for 3.%d\n", PY_MINOR_VERSION);
		return 1;
	}
#if PY_MINOR_VERSION <= 10
	AT(ts_frame, PyThreadState, frame);
	AT(f_back, PyFrameObject, f_back);
	AT(f_code, PyFrameObject, f_code);
	AT(f_instr, PyFrameObject, f_lasti);
	AT(co_qual, PyCodeObject, co_name);
#if PY_MINOR_VERSION < 10
	AT(co_lines, PyCodeObject, co_lnotab);
#else
	AT(co_lines, PyCodeObject, co_linetable);
	AT(ts_cframe, PyThreadState, cframe);
	AT(cf_prev, CFrame, previous);
#endif
#else
#if PY_MINOR_VERSION <= 12
	AT(ts_cframe, PyThreadState, cframe);
	AT(cf_frame, _PyCFrame, current_frame);
	AT(f_instr, _PyInterpreterFrame, prev_instr);
#else
	AT(ts_frame, PyThreadState, current_frame);
	AT(f_instr, _PyInterpreterFrame, instr_ptr);
#endif
#if PY_MINOR_VERSION == 11
	AT(cf_prev, _PyCFrame, previous);
	AT(f_entry, _PyInterpreterFrame, is_entry);
#endif
#if PY_MINOR_VERSION <= 12
	AT(f_code, _PyInterpreterFrame, f_code);
#else
	AT(f_code, _PyInterpreterFrame, f_executable);
#endif
	AT(f_back, _PyInterpreterFrame, previous);
	AT(f_owner, _PyInterpreterFrame, owner);
	same("FRAME_OWNED_BY_GENERATOR", 1, FRAME_OWNED_BY_GENERATOR);
	AT(co_qual, PyCodeObject, co_qualname);
	AT(co_lines, PyCodeObject, co_linetable);
	AT(co_code, PyCodeObject, co_code_adaptive);
	AT(co_traceable, PyCodeObject, _co_firsttraceable);
#endif
#if defined Py_GIL_DISABLED && PY_MINOR_VERSION >= 14
	AT(f_tlbc, _PyInterpreterFrame, tlbc_index);
	AT(co_tlbc, PyCodeObject, co_tlbc);
#endif
	AT(co_first, PyCodeObject, co_firstlineno);
	AT(co_file, PyCodeObject, co_filename);
	AT(ob_type, PyObject, ob_type);
	AT(ob_size, PyVarObject, ob_size);
	AT(b_data, PyBytesObject, ob_sval);
	AT(u_length, PyASCIIObject, length);
	AT(u_state, PyASCIIObject, state);
	same("sizeof(PyASCIIObject)", l->u_ascii, sizeof(PyASCIIObject));
	same("sizeof(PyCompactUnicodeObject)", l->u_compact, sizeof(PyCompactUnicodeObject));
	printf("3.%d%s: %d fields compared, %d wrong\n", PY_MINOR_VERSION, FREE_THREADED ? ", free-threaded" : "", compared, wrong);
	return wrong != 0;
}
