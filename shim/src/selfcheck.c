/* selfcheck.c: does our walk see what Python sees?
 *
 * Runs once, in the interpreter's main thread between two bytecodes, with the GIL, soon after start (exit.c asks for it). The
 * walk of this thread's frames is compared, frame by frame, with the frame objects: function, file, line. A struct layout that
 * is not what the table says (a patched or vendor-built interpreter) is found here; from then on stacks have native frames
 * only, and META says why.
 *
 * Of CPython's API only what is exported in 3.8 - 3.15: PyEval_GetFrame gives the innermost frame, borrowed.
 */
#include "selfcheck.h"

#include "intern.h"
#include "out.h"
#include "pyframes.h"

#include <stdio.h>
#include <string.h>

static struct {
	void *(*frame)(void);
	void *(*getattr)(void *, const char *);
	const char *(*utf8)(void *, long *);
	long (*as_long)(void *);
	void (*incref)(void *), (*decref)(void *);
	void (*clear_error)(void);
	void *none;
} py;

bool hw_selfcheck_init(void)
{
	const struct {
		void *to;
		const char *name;
	} symbols[] = {
		{&py.frame, "PyEval_GetFrame"},	  {&py.getattr, "PyObject_GetAttrString"}, {&py.utf8, "PyUnicode_AsUTF8AndSize"},
		{&py.as_long, "PyLong_AsLong"},	  {&py.incref, "Py_IncRef"},		   {&py.decref, "Py_DecRef"},
		{&py.clear_error, "PyErr_Clear"}, {&py.none, "_Py_NoneStruct"},
	};
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *s = hw_py_symbol(symbols[i].name);
		if (!s)
			return false;
		*(void **)symbols[i].to = s;
	}
	return true;
}

/* Does the interpreter's text of an attribute equal ours? Names that are no UTF-8 (lone surrogates) count as equal. */
static bool same_text(void *object, const char *attribute, const char *ours, uint32_t len)
{
	void *s = py.getattr(object, attribute);
	long n = 0;
	const char *theirs = s ? py.utf8(s, &n) : NULL;
	bool same = !theirs || n > 1000 || ((size_t)n == len && !memcmp(theirs, ours, len));
	if (!theirs)
		py.clear_error();
	if (s)
		py.decref(s);
	return same;
}

/* NULL if the frame is the captured one, else which part of it is not. */
static const char *differs(void *frame, const struct hw_pyframe *captured)
{
	uint64_t token = hw_py_encode(captured);
	struct hw_function f;
	if (token == HW_MARK_STOPPED)
		return "code object";
	if (!hw_intern_get((uint32_t)(token >> HW_LINE_BITS) & 0x3ffffff, &f))
		return NULL; /* the function table is full: nothing to compare */
	void *line = py.getattr(frame, "f_lineno"), *code = py.getattr(frame, "f_code");
	const char *part = NULL;
	if (!code || !line)
		part = NULL;
	else if (!same_text(code, hw_py_minor() >= 11 ? "co_qualname" : "co_name", f.name, f.name_len))
		part = "function";
	else if (!same_text(code, "co_filename", f.file, f.file_len))
		part = "file";
	else if (line != py.none && (uint64_t)py.as_long(line) != (token & HW_LINE_MAX))
		part = "line";
	if (code)
		py.decref(code);
	if (line)
		py.decref(line);
	py.clear_error();
	return part;
}

void hw_selfcheck(void)
{
	static struct hw_pywalk w; /* one check, in one thread */
	void *frame = py.frame();
	if (!frame)
		return;
	if (hw_py_on_trial())
		hw_py_try();
	if (strcmp(hw_py_frames_state(), "on"))
		return;
	hw_py_walk(&w);
	const char *part = w.stopped ? "chain of frames" : NULL;
	uint32_t at = 0;
	py.incref(frame);
	while (!part && frame && frame != py.none && at < HW_KEEP_LEAF) {
		part = at < w.total ? differs(frame, &w.leaf[at]) : "number of frames";
		at++;
		void *back = py.getattr(frame, "f_back");
		py.decref(frame);
		frame = back;
	}
	if (!part && (!frame || frame == py.none) && at != w.total)
		part = "number of frames";
	if (frame)
		py.decref(frame);
	py.clear_error();
	if (!part)
		return;
	char why[120];
	snprintf(why, sizeof why, "a walk's %s differs from what Python says, at frame %u", part, at);
	hw_py_disable(why);
	hw_say("Python %s: %s; stacks have native frames only", hw_py_version(), why);
}
