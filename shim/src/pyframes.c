/* pyframes.c: the Python stack of the calling thread, read without the GIL.
 *
 * hw_py_walk, hw_py_encode and hw_py_is_eval run in the sampling hook: inside malloc, on any thread, GIL held or not, with
 * any lock of the program held by anybody. They take no lock, allocate nothing, and read memory only through the checks
 * below. Why reading is safe: only the calling thread's own frames are read, and that thread stands
 * inside malloc, so nothing moves under the walk except what the interrupted operation left half done.
 *
 * Whose frames: PyGILState_GetThisThreadState, as faulthandler does. The two other getters are wrong here:
 * _PyThreadState_UncheckedGet is the GIL holder's state up to 3.11, and NULL while the GIL is released from 3.12 on. On
 * sub-interpreters of 3.8 - 3.11 it gives the main interpreter's frames.
 *
 * Finalising: the interpreter frees thread states while daemon threads still malloc, so that question comes first.
 *
 * Offsets: pyoffsets.h, with their sources.
 */
#include "pyframes.h"

#include "intern.h"
#include "pyoffsets.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static struct hw_layout L;
static _Atomic bool enabled;

static int minor = -1;
static char version[32];
static char state[160] = "off: no Python in this process";

static const char *(*get_tstate)(void);
static int (*is_finalizing)(void);
static const char *type_code, *type_str, *type_bytes;
static uintptr_t eval_lo, eval_hi;

#define MAX_CHAIN 100000u        /* frames followed, against loops in a broken chain */
#define MAX_NAME (64u << 10)     /* characters of a name or path */
#define MAX_LINETABLE (4 << 20)  /* bytes; a function of 100 000 lines has half a megabyte */

/* ---------------------------------------------------------------- reading */

/* Pages that could be read when they were last looked at, by their number modulo the size; the clock empties it each second.
 * A garbage pointer (a half torn-down object, a layout that is not what it should be) then ends the walk instead of the
 * program. */
#define PAGE_CACHE 2048u
static _Atomic uint64_t pages[PAGE_CACHE];

void hw_py_forget_pages(void)
{
	for (unsigned i = 0; i < PAGE_CACHE; i++)
		atomic_store_explicit(&pages[i], 0, memory_order_relaxed);
}

/* Asks the kernel: rt_sigprocmask copies the set before it looks at `how`, which is none here, so it fails with EFAULT for an
 * address that cannot be read and with EINVAL for one that can, and does nothing else (kernel/signal.c). Once a page
 * and second. By hand, so that errno is left alone. */
static __attribute__((noinline)) bool ask_kernel(uint64_t page)
{
	long r;
	register long size __asm__("r10") = 8;
	__asm__ volatile("syscall"
			 : "=a"(r)
			 : "a"(14 /* rt_sigprocmask */), "D"(-1L), "S"(page << 12), "d"(0L), "r"(size)
			 : "rcx", "r11", "memory");
	if (r == -14 /* EFAULT */)
		return false;
	atomic_store_explicit(&pages[page % PAGE_CACHE], page, memory_order_relaxed);
	return true;
}

static inline bool readable(uint64_t page)
{
	return hw_likely(atomic_load_explicit(&pages[page % PAGE_CACHE], memory_order_relaxed) == page) || ask_kernel(page);
}

/* Bytes of each struct that are read: up to the end of the last field in pyoffsets.h, and not more, since an object may lie
 * at the end of what is mapped. */
enum { TSTATE = 80, CFRAME = 24, FRAME = 112, INTERP_FRAME = 79, CODE = 144, CODE_FT = 232, STR = 36, STR_FT = 52, BYTES = 24, BYTES_FT = 40 };

/* User space of x86-64 without 5-level paging, above the zero page, aligned as every object is, and there. */
static inline bool sane(const void *p, size_t n)
{
	uintptr_t v = (uintptr_t)p;
	return v > 0xffff && v < 1ull << 47 && !(v & 7) && readable(v >> 12) && ((v & 4095) <= 4096 - n || readable((v >> 12) + 1));
}

/* The pages after the first up to p + n - 1: what follows an object's header. */
static bool readable_to(const char *p, size_t n)
{
	for (uint64_t page = ((uintptr_t)p >> 12) + 1, last = ((uintptr_t)p + n - 1) >> 12; page <= last; page++)
		if (!readable(page))
			return false;
	return true;
}

static inline const char *load_ptr(const char *p, unsigned off)
{
	const char *v;
	memcpy(&v, p + off, sizeof v);
	return v;
}

static inline int32_t load_i32(const char *p, unsigned off)
{
	int32_t v;
	memcpy(&v, p + off, sizeof v);
	return v;
}

static inline int64_t load_i64(const char *p, unsigned off)
{
	int64_t v;
	memcpy(&v, p + off, sizeof v);
	return v;
}

static bool chars(const char *o, struct hw_chars *c)
{
	if (!sane(o, L.ft ? STR_FT : STR) || load_ptr(o, L.ob_type) != type_str)
		return false;
	uint32_t st = (uint32_t)load_i32(o, L.u_state);
	int64_t len = load_i64(o, L.u_length);
	unsigned kind = HW_STR_KIND(&L, st);
	if (len < 0 || len > (int64_t)MAX_NAME || !HW_STR_COMPACT(&L, st) || (kind != 1 && kind != 2 && kind != 4))
		return false;
	bool ascii = HW_STR_ASCII(&L, st);
	if (!readable_to(o, (ascii ? L.u_ascii : L.u_compact) + (size_t)len * kind))
		return false;
	*c = (struct hw_chars){o + (ascii ? L.u_ascii : L.u_compact), (uint32_t)len, (uint8_t)kind, ascii};
	return true;
}

/* ---------------------------------------------------------------- line tables */

/* 3.8, 3.9: co_lnotab, pairs of (bytes, signed lines); Objects/lnotab_notes.txt. */
static int64_t line_lnotab(const uint8_t *p, const uint8_t *end, int64_t addr, int64_t line)
{
	int64_t a = 0;
	for (; p + 1 < end; p += 2) {
		a += p[0];
		if (a > addr)
			break;
		line += (int8_t)p[1];
	}
	return line;
}

/* 3.10: PEP 626, pairs of (length, signed lines); -128: no line for this range. */
static int64_t line_pep626(const uint8_t *p, const uint8_t *end, int64_t addr, int64_t first)
{
	int64_t a = 0;
	int64_t line = first;
	for (; p + 1 < end; p += 2) {
		a += p[0];
		int8_t d = (int8_t)p[1];
		if (d != -128)
			line += d;
		if (a > addr)
			return line;
	}
	return first;
}

/* 3.11+: location table, Objects/locations.md. First byte 1cccclll: code c, l + 1 code units of two bytes. Codes 13 and 14
 * start with a signed varint of lines (6 bits a byte, bit 6 = more, sign lowest), 10 - 12 add 0 - 2, 15 has no line (the
 * last one seen counts), the others stay on the line. */
static int64_t line_location(const uint8_t *p, const uint8_t *end, int64_t addr, int64_t first)
{
	int64_t a = 0;
	int64_t line = first, last = first;
	while (p < end) {
		unsigned code = *p >> 3 & 15;
		a += ((*p & 7) + 1) * 2;
		if (code == 13 || code == 14) {
			uint32_t v = 0;
			unsigned shift = 0;
			for (const uint8_t *q = p + 1; q < end && shift <= 30; q++, shift += 6) {
				v |= (uint32_t)(*q & 63) << shift;
				if (!(*q & 64))
					break;
			}
			line += v & 1 ? -(int64_t)(v >> 1) : (int64_t)(v >> 1);
		} else if (code >= 10 && code <= 12) {
			line += (int64_t)code - 10;
		}
		if (a > addr)
			return code == 15 ? last : line;
		if (code != 15)
			last = line;
		for (p++; p < end && !(*p & 0x80); p++)
			;
	}
	return first;
}

static int32_t line_of(const char *code, const char *table, int64_t size, int64_t addr)
{
	int64_t line = load_i32(code, L.co_first);
	if (addr >= 0 && table) {
		const uint8_t *p = (const uint8_t *)table + L.b_data, *end = p + size;
		line = L.minor < 10    ? line_lnotab(p, end, addr, line)
		       : L.minor == 10 ? line_pep626(p, end, addr, line)
				       : line_location(p, end, addr, line);
	}
	return line < 0 || line > HW_LINE_MAX ? 0 : (int32_t)line;
}

/* Walking a table is linear in its length, so lines of long tables are kept: a lossy cache whose key is stored XOR the
 * value, so that a torn write never matches. The key holds everything the line depends on: a code object that is freed and
 * replaced by another one at its address differs in function id, table address or table size, or has the same lines. */
#define LINE_CACHE_BITS 12
#define LINE_CACHE_MIN 48 /* bytes of table below which looking is as quick as remembering */

struct line_entry {
	_Atomic uint64_t key, line;
};

static struct line_entry *line_cache;

uint64_t hw_py_encode(const struct hw_pyframe *f)
{
	const char *code = f->code;
	struct hw_chars file, name;
	if (!sane(code, L.ft ? CODE_FT : CODE) || load_ptr(code, L.ob_type) != type_code || !chars(load_ptr(code, L.co_file), &file) ||
	    !chars(load_ptr(code, L.co_qual), &name))
		return HW_MARK_STOPPED;
	uint32_t id = hw_intern(&file, &name, (uint32_t)load_i32(code, L.co_first));

	const char *table = load_ptr(code, L.co_lines);
	int64_t size = 0;
	if (sane(table, L.ft ? BYTES_FT : BYTES) && load_ptr(table, L.ob_type) == type_bytes)
		size = load_i64(table, L.ob_size);
	if (size <= 0 || size > MAX_LINETABLE || !readable_to(table, L.b_data + (size_t)size))
		table = NULL;
	int32_t line;
	if (!table || size < LINE_CACHE_MIN) {
		line = line_of(code, table, size, f->addr);
	} else {
		uint64_t key = hw_mix((uint64_t)code ^ (uint64_t)f->addr << 20,
				      (uint64_t)table ^ (uint64_t)size << 44 ^ (uint64_t)id * 0x9E3779B1u);
		key |= 1; /* an empty entry has key 0 */
		struct line_entry *e = &line_cache[key >> (64 - LINE_CACHE_BITS)];
		uint64_t k = atomic_load_explicit(&e->key, memory_order_acquire);
		uint64_t v = atomic_load_explicit(&e->line, memory_order_relaxed);
		if (k == (key ^ v)) {
			line = (int32_t)v;
		} else {
			line = line_of(code, table, size, f->addr);
			atomic_store_explicit(&e->line, (uint64_t)(uint32_t)line, memory_order_relaxed);
			atomic_store_explicit(&e->key, key ^ (uint64_t)(uint32_t)line, memory_order_release);
		}
	}
	return HW_TAG | (uint64_t)id << HW_LINE_BITS | (uint32_t)line;
}

/* ---------------------------------------------------------------- the walk */

static inline void keep(struct hw_pywalk *w, const char *code, int64_t addr)
{
	struct hw_pyframe f = {code, addr};
	if (w->total < HW_KEEP_LEAF)
		w->leaf[w->total] = f;
	w->root[w->total % HW_KEEP_ROOT] = f;
	w->total++;
}

static inline void end_run(struct hw_pywalk *w, uintptr_t at)
{
	if (w->nruns < HW_KEEP_RUNS) {
		w->runs[w->nruns].at = at;
		w->runs[w->nruns].end = w->total;
		w->nruns++;
	}
}

/* 3.8 - 3.10: a chain of PyFrameObject, one C call of the eval loop each. f_lasti counts bytes up to 3.9, code units in
 * 3.10. The 3.10 thread state points to the innermost eval loop's CFrame, which lies in that C frame. */
static void walk_objects(struct hw_pywalk *w, const char *ts)
{
	const char *f = load_ptr(ts, L.ts_frame);
	const char *cf = L.ts_cframe ? load_ptr(ts, L.ts_cframe) : NULL;
	if (f)
		w->boundary = (uintptr_t)cf;
	for (; f; f = load_ptr(f, L.f_back)) {
		if (!sane(f, FRAME) || w->total >= MAX_CHAIN) {
			w->stopped = true;
			return;
		}
		int64_t addr = load_i32(f, L.f_instr);
		if (L.minor == 10 && addr > 0)
			addr *= 2;
		keep(w, load_ptr(f, L.f_code), addr);
		end_run(w, (uintptr_t)cf);
		if (cf)
			cf = sane(cf, CFRAME) ? load_ptr(cf, L.cf_prev) : NULL;
	}
}

/* Where the bytecode begins that this frame runs: the thread's copy, where it has one. */
static const char *bytecode(const char *f, const char *code)
{
	const char *copies = sane(code, CODE_FT) ? load_ptr(code, L.co_tlbc) : NULL;
	int32_t i = load_i32(f, L.f_tlbc);
	if (sane(copies, HW_CODE_ARRAY_ENTRIES) && i >= 0 && i < load_i64(copies, 0)) {
		const char *entry = copies + HW_CODE_ARRAY_ENTRIES + (size_t)i * 8;
		const char *copy = sane(entry, 8) ? load_ptr(entry, 0) : NULL;
		if (copy)
			return copy;
	}
	return code + L.co_code;
}

/* Is this frame, from which another one was called, none that Python shows? 3.12 and later, once a call of a class is specialised,
 * put one named __init__ under the constructor's that only checks what it returned. Python passes over it as over every frame
 * that has not been entered yet (_PyFrame_IsIncomplete in Include/internal/pycore_frame.h): its bytecode is short. */
static bool incomplete(const char *f, const char *code, int64_t addr)
{
	const int64_t longest = 512;
	return addr < longest && f[L.f_owner] != 1 && sane(code, L.ft ? CODE_FT : CODE) && addr < 2 * (int64_t)load_i32(code, L.co_traceable);
}

/* 3.11+: a chain of _PyInterpreterFrame; Python-to-Python calls share one C call of the eval loop. The C frame of a run
 * is told by an object in it: 3.11 the _PyCFrame, 3.12+ the entry frame at the end of the run. Of an entry frame only
 * owner and previous may be read. From 3.14 on f_executable is tagged in its low bits. */
static void walk_interp(struct hw_pywalk *w, const char *ts)
{
	const char *f, *cf = NULL;
	if (L.ts_cframe) {
		cf = load_ptr(ts, L.ts_cframe);
		if (!sane(cf, CFRAME)) {
			w->stopped = cf != NULL;
			return;
		}
		f = load_ptr(cf, L.cf_frame);
		if (L.minor == 11 && f)
			w->boundary = (uintptr_t)cf;
	} else {
		f = load_ptr(ts, L.ts_frame);
	}
	uint32_t followed = 0;
	for (; f; f = load_ptr(f, L.f_back)) {
		if (!sane(f, INTERP_FRAME) || followed++ >= MAX_CHAIN) {
			w->stopped = true;
			return;
		}
		if (L.f_owner && (uint8_t)f[L.f_owner] >= 3) {
			if (w->total && !w->boundary)
				w->boundary = (uintptr_t)f;
			end_run(w, (uintptr_t)f);
			continue;
		}
		const char *code = load_ptr(f, L.f_code);
		if (L.minor >= 14)
			code = (const char *)((uintptr_t)code & ~(uintptr_t)3);
		int64_t addr = (int64_t)(load_ptr(f, L.f_instr) - (L.co_tlbc ? bytecode(f, code) : code + L.co_code));
		if (!w->total || !incomplete(f, code, addr))
			keep(w, code, addr);
		if (L.f_entry && f[L.f_entry] && cf) {
			end_run(w, (uintptr_t)cf);
			cf = sane(cf, CFRAME) ? load_ptr(cf, L.cf_prev) : NULL;
		}
	}
}

void hw_py_walk(struct hw_pywalk *w)
{
	w->total = 0;
	w->nruns = 0;
	w->stopped = false;
	w->boundary = 0;
	if (!atomic_load_explicit(&enabled, memory_order_acquire) || is_finalizing())
		return;
	const char *ts = get_tstate();
	if (!sane(ts, TSTATE))
		return; /* a thread that Python does not know */
	if (L.minor <= 10)
		walk_objects(w, ts);
	else
		walk_interp(w, ts);
}

static bool is_text(const struct hw_chars *c, const char *s)
{
	return c->ascii && c->len == strlen(s) && !memcmp(c->p, s, c->len);
}

/* Up to 3.11 importlib's module locks are not reentrant for one thread: an import that starts while the thread is inside
 * _ModuleLock.acquire makes the outer one fail with a KeyError (seen in 3.8; python/cpython gh-106176). Below the functions
 * listed a module's own code runs, and it may import. */
bool hw_py_inside_importlib(void)
{
	static const char *const may_import[] = {"_find_and_load", "_find_and_load_unlocked", "_load_unlocked", "_load_backward_compatible",
						 "_call_with_frames_removed", "_handle_fromlist", "_gcd_import", "exec_module",
						 "BuiltinImporter.exec_module", "FrozenImporter.exec_module"};
	static struct hw_pywalk w;
	if (!atomic_load(&enabled))
		return true;
	hw_py_walk(&w);
	for (uint32_t i = 0; i < w.total && i < HW_KEEP_LEAF; i++) {
		const char *code = w.leaf[i].code;
		struct hw_chars file, name;
		if (!sane(code, L.ft ? CODE_FT : CODE) || load_ptr(code, L.ob_type) != type_code || !chars(load_ptr(code, L.co_file), &file) ||
		    !chars(load_ptr(code, L.co_qual), &name))
			return true;
		if (!is_text(&file, "<frozen importlib._bootstrap>"))
			continue;
		bool allowed = false;
		for (size_t k = 0; k < sizeof may_import / sizeof *may_import; k++)
			allowed |= is_text(&name, may_import[k]);
		if (!allowed)
			return true;
	}
	return false;
}

bool hw_py_is_eval(uintptr_t ip)
{
	return ip >= eval_lo && ip < eval_hi;
}

/* In a shared libpython 3.15 PyGILState_GetThisThreadState reads a variable through __tls_get_addr (seen in 3.15.2). When
 * the allocation is the loader's own realloc of a thread's dtv, that would enter the loader a second time with the same
 * block (glibc >= 2.39), so those few allocations go without Python frames. */
bool hw_py_safe_in_loader(void)
{
	return L.minor < 15;
}

/* ---------------------------------------------------------------- set-up */

void *hw_py_symbol(const char *name)
{
	void *s = dlsym(RTLD_DEFAULT, name);
	if (!s)
		hw_forget_dlerror();
	return s;
}

void *hw_py_is_finalizing_symbol(void)
{
	void *s = hw_py_symbol("Py_IsFinalizing"); /* 3.13+ */
	return s ? s : hw_py_symbol("_Py_IsFinalizing");
}

const char *hw_py_version(void)
{
	return version;
}

const char *hw_py_frames_state(void)
{
	return state;
}

int hw_py_minor(void)
{
	return minor;
}

int hw_py_find(void)
{
	const char *(*get_version)(void) = (const char *(*)(void))hw_py_symbol("Py_GetVersion");
	if (!get_version)
		return 0;
	const char *v = get_version();
	size_t n = strcspn(v, " ");
	if (n >= sizeof version)
		n = sizeof version - 1;
	memcpy(version, v, n);
	version[n] = 0;
	if (strncmp(v, "3.", 2))
		return -1;
	minor = (int)strtol(v + 2, NULL, 10);
	return minor > 0 ? minor : -1;
}

static const char *off(const char *reason)
{
	snprintf(state, sizeof state, "off: %s", reason);
	return state + strlen("off: ");
}

/* True if the interpreter's own offsets are those of the table. `runtime` is &_PyRuntime. */
static bool agrees(const struct hw_layout *l, const struct hw_debug_words *d, const uint64_t *runtime)
{
	const struct {
		uint8_t word;
		unsigned want;
	} checks[] = {
		{d->current_frame, l->ts_frame}, {d->previous, l->f_back},	{d->executable, l->f_code},
		{d->instr_ptr, l->f_instr},	 {d->owner, l->f_owner},	{d->filename, l->co_file},
		{d->qualname, l->co_qual},	 {d->linetable, l->co_lines},	{d->firstlineno, l->co_first},
		{d->code_adaptive, l->co_code},	 {d->ob_type, l->ob_type},	{d->ob_size, l->ob_size},
		{d->ob_sval, l->b_data},	 {d->state, l->u_state},	{d->length, l->u_length},
		{d->asciiobject, l->u_ascii},
	};
	for (size_t i = 0; i < sizeof checks / sizeof *checks; i++)
		if (runtime[checks[i].word] != checks[i].want)
			return false;
	return true;
}

static const char *check_runtime(const struct hw_layout *l)
{
	const uint64_t *runtime = hw_py_symbol("_PyRuntime");
	if (!runtime || memcmp(runtime, "xdebugpy", 8))
		return "the interpreter does not describe itself as 3.13 and later do";
	if (runtime[1] >> 16 != (uint64_t)(0x300 + l->minor))
		return "the interpreter's description of itself is of another version";
	for (size_t i = 0; i < sizeof hw_debug_words / sizeof *hw_debug_words; i++)
		if (hw_debug_words[i].minor == l->minor)
			return agrees(l, &hw_debug_words[i], runtime)
				       ? NULL
				       : "the interpreter's struct layout differs from the known one of its version";
	return "unknown version";
}

/* 3.8 and 3.9 have no object in the eval loop's C frame: the loop is known by the extent of its symbol. */
static bool find_eval(void)
{
	Dl_info info;
	const ElfW(Sym) *sym = NULL;
	void *ev = hw_py_symbol("_PyEval_EvalFrameDefault");
	if (!ev || !dladdr1(ev, &info, (void **)&sym, RTLD_DL_SYMENT) || !sym || !sym->st_size)
		return false;
	eval_lo = (uintptr_t)ev;
	eval_hi = eval_lo + sym->st_size;
	return true;
}

/* 3.13+: the third word of its description. */
static bool is_free_threaded(void)
{
	const uint64_t *runtime = minor >= 13 ? hw_py_symbol("_PyRuntime") : NULL;
	return runtime && !memcmp(runtime, "xdebugpy", 8) && runtime[2];
}

const char *hw_py_enable(void)
{
	const struct hw_layout *l = NULL;
	bool ft = is_free_threaded();
	for (size_t i = 0; i < sizeof hw_layouts / sizeof *hw_layouts; i++)
		if (hw_layouts[i].minor == minor && hw_layouts[i].ft == ft)
			l = &hw_layouts[i];
	if (!l)
		return off("this Python version is not known");
	if (minor >= 13) {
		const char *why = check_runtime(l);
		if (why)
			return off(why);
	}
	get_tstate = (const char *(*)(void))hw_py_symbol("PyGILState_GetThisThreadState");
	is_finalizing = (int (*)(void))hw_py_is_finalizing_symbol();
	type_code = hw_py_symbol("PyCode_Type");
	type_str = hw_py_symbol("PyUnicode_Type");
	type_bytes = hw_py_symbol("PyBytes_Type");
	if (!get_tstate || !is_finalizing || !type_code || !type_str || !type_bytes)
		return off("the interpreter's symbols cannot be found");
	if (minor < 10 && !find_eval())
		return off("the extent of the interpreter's eval loop cannot be found");
	void *m = mmap(NULL, sizeof *line_cache << LINE_CACHE_BITS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m == MAP_FAILED || !hw_intern_init())
		return off("no memory for the function table");
	line_cache = m;
	/* The first call goes through the library's own lazy binding, which must not happen inside malloc. */
	(void)is_finalizing();
	(void)get_tstate();
	L = *l;
	if (L.ft) {
		off("free-threaded, not looked at yet");
		return NULL;
	}
	atomic_store(&enabled, true);
	strcpy(state, "on");
	return NULL;
}

bool hw_py_on_trial(void)
{
	return L.minor && L.ft && !atomic_load(&enabled) && !strcmp(state, "off: free-threaded, not looked at yet");
}

void hw_py_try(void)
{
	atomic_store(&enabled, true);
	strcpy(state, "on");
}

struct hw_layout *hw_py_layout(void)
{
	return &L;
}

void hw_py_disable(const char *reason)
{
	atomic_store(&enabled, false);
	off(reason);
}
