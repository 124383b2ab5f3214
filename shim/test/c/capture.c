/* capture.c: a window into the sampling hook for tests. Only in libheapwire_test.so, which is the library plus this file;
 * called from Python through ctypes.
 */
#include "../../src/intern.h"
#include "../../src/native.h"
#include "../../src/pyframes.h"
#include "../../src/pyoffsets.h"
#include "../../src/sample.h"
#include "../../src/selfcheck.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unwind.h>

#define DEPTH 128

/* One captured stack as text, leaf first: "N <address> <symbol>", "P <function>\t<file>\t<line>", "..." where frames were left
 * out, "!" where the Python walk stopped. Returns the number of entries. */
HW_EXPORT int heapwire_test_capture(char *buf, size_t cap)
{
	void *vec[DEPTH];
	unsigned len = 0;
	size_t n = 0;
	hw_sample_hook(vec, &len, DEPTH);
	for (unsigned i = 0; i < len && n + 8192 < cap; i++) {
		uint64_t a = (uint64_t)vec[i];
		struct hw_function f;
		if (a == HW_MARK_CUT) {
			n += (size_t)sprintf(buf + n, "...\n");
		} else if (a == HW_MARK_STOPPED) {
			n += (size_t)sprintf(buf + n, "!\n");
		} else if (a >> 48 == HW_TAG >> 48) {
			if (hw_intern_get((uint32_t)(a >> HW_LINE_BITS) & 0x3ffffff, &f))
				n += (size_t)sprintf(buf + n, "P %.*s\t%.*s\t%u\n", (int)f.name_len, f.name, (int)f.file_len, f.file,
						     (unsigned)(a & HW_LINE_MAX));
			else
				n += (size_t)sprintf(buf + n, "P ?\t?\t%u\n", (unsigned)(a & HW_LINE_MAX));
		} else {
			Dl_info info;
			const char *s = dladdr((void *)(a - 1), &info) && info.dli_sname ? info.dli_sname : "?";
			n += (size_t)sprintf(buf + n, "N %llx %.200s\n", (unsigned long long)a, s);
		}
	}
	buf[n] = 0;
	return (int)len;
}

struct other {
	unsigned n;
	uintptr_t ip[512];
};

static _Unwind_Reason_Code one(struct _Unwind_Context *c, void *arg)
{
	struct other *o = arg;
	uintptr_t ip = _Unwind_GetIP(c);
	if (!ip || o->n == sizeof o->ip / sizeof *o->ip)
		return _URC_END_OF_STACK;
	if (o->n || !hw_native_is_self(ip - 1))
		o->ip[o->n++] = ip;
	return _URC_NO_REASON;
}

/* Walks the whole native stack with our rules and with libgcc's unwinder. The number of frames if both are the same, else
 * minus the place of the first difference, minus 1. libgcc may go one entry further, below the program's entry point. */
HW_EXPORT int heapwire_test_against_libgcc(void)
{
	static struct hw_natwalk w;
	static struct other o;
	o.n = 0;
	hw_native_walk(&w, 0, false);
	_Unwind_Backtrace(one, &o);
	for (unsigned i = 0; i < w.total && i < HW_KEEP_LEAF; i++)
		if (i >= o.n || w.leaf[i] != o.ip[i])
			return -(int)i - 1;
	if (w.total <= HW_KEEP_LEAF && o.n > w.total + 1)
		return -(int)w.total - 1;
	return (int)w.total;
}

/* Nanoseconds of one capture from here, the least of `rounds` rounds of n. */
HW_EXPORT double heapwire_test_capture_ns(long n, int rounds)
{
	void *vec[DEPTH];
	unsigned len;
	double least = 1e18;
	for (int r = 0; r < rounds; r++) {
		struct timespec a, b;
		clock_gettime(CLOCK_MONOTONIC, &a);
		for (long i = 0; i < n; i++)
			hw_sample_hook(vec, &len, DEPTH);
		clock_gettime(CLOCK_MONOTONIC, &b);
		double ns = ((double)(b.tv_sec - a.tv_sec) * 1e9 + (double)(b.tv_nsec - a.tv_nsec)) / (double)n;
		least = ns < least ? ns : least;
	}
	return least;
}

/* Breaks one field of the layout and has the self-check look: "on" if it found nothing, else the reason. Called with the GIL. */
HW_EXPORT const char *heapwire_test_selfcheck(int field)
{
	struct hw_layout *l = hw_py_layout();
	switch (field) {
	case 1:
		l->co_first = l->co_first + 4;
		break;
	case 2:
		l->co_qual = l->co_file;
		break;
	case 3:
		l->f_back = l->f_code;
		break;
	case 4:
		l->f_instr = l->f_instr + 8;
		break;
	}
	hw_selfcheck();
	return hw_py_frames_state();
}
