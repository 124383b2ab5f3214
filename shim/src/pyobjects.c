/* pyobjects.c: a sample of the small objects, taken at the interpreter's own allocator.
 *
 * Requests of up to 512 bytes never reach malloc: pymalloc serves them from arenas that it maps. So malloc, calloc and realloc of
 * the two domains that pymalloc serves (PYMEM_DOMAIN_OBJ and _MEM) are wrapped with PyMem_SetAllocator, as tracemalloc does, and a
 * request that is sampled is served from slots.c instead. All others pay a subtraction and a jump.
 *
 * Frees pay nothing: pymalloc hands a block that it does not know to PyMem_RawFree, as one that was too large for it, and so to
 * free (family.c). It counts it off those too (raw_allocated_blocks, of sys.getallocatedblocks), so each is counted in. Until the
 * interpreter is up and it is clear that the raw domain is malloc's, and where it is not, free is wrapped too.
 *
 * What is sampled: each thread counts down the bytes that pymalloc serves it, from an exponential draw with the sampling interval
 * as its mean; the request at which the count falls below zero is sampled. So one of n bytes is with probability
 * 1 - exp(-n/interval), as in jemalloc. n is what pymalloc takes for it, a multiple of 16. Larger requests leave the count alone:
 * malloc serves them, and jemalloc samples those.
 *
 * realloc is decided anew, as if it were a free and a malloc, which is what jemalloc does: strings are allocated long and shrunk,
 * and would count at their first size with the odds of their last otherwise.
 *
 * The wrappers run with the GIL as a rule, several interpreters' on several threads at once, inside whatever the interpreter is
 * doing: the laws of the sampling hook hold, but that a sampled request has pymalloc ask malloc for a block, as pymalloc does itself;
 * and the countdown is the thread's. A block may come back to free or realloc past the
 * wrappers, when somebody has put another allocator in their place: family.c looks too.
 *
 * Source: Objects/obmalloc.c of 3.8 - 3.15.
 */
#include "pyobjects.h"

#include "alloc.h"
#include "config.h"
#include "out.h"
#include "pyframes.h"
#include "slots.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Of CPython's public API (3.5 and later): PyMemAllocatorEx, PyMemAllocatorDomain. */
struct allocator {
	void *ctx;
	void *(*malloc)(void *, size_t);
	void *(*calloc)(void *, size_t, size_t);
	void *(*realloc)(void *, void *, size_t);
	void (*free)(void *, void *);
};
enum { RAW, MEM, OBJ };

static struct {
	void (*get)(int, struct allocator *), (*set)(int, struct allocator *);
	void *(*malloc)(size_t), *(*raw_malloc)(size_t);
	void (*free)(void *), (*raw_free)(void *);
} py;

static struct allocator real, raw_at_start; /* real: pymalloc, whose ctx is NULL */
static _Atomic bool on;
static _Atomic bool past; /* frees go past us, through pymalloc */
static _Atomic unsigned lg; /* of the sampling interval */
static char state[160] = "off: no Python in this process";

/* -ftls-model=initial-exec: no call of the loader's. */
static __thread int64_t left;
static __thread uint64_t rng; /* 0: this thread has none yet */

/* ---------------------------------------------------------------- the sample */

static void seed(void)
{
	static _Atomic uint64_t threads;
	rng = (uint64_t)hw_thread_pointer() ^ __builtin_ia32_rdtsc() * 0x9E3779B97F4A7C15ull ^
	      atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed) << 40;
	rng += !rng;
}

/* splitmix64, Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014. */
static uint64_t random_bits(void)
{
	uint64_t z = rng += 0x9E3779B97F4A7C15ull;
	rng += !rng;
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9ull;
	z = (z ^ z >> 27) * 0x94D049BB133111EBull;
	return z ^ z >> 31;
}

static int64_t draw(void)
{
	unsigned l = atomic_load_explicit(&lg, memory_order_relaxed);
	if (!l)
		return 0;
	double u = ((double)(random_bits() >> 11) + 1) * 0x1p-53; /* (0, 1] */
	return (int64_t)(-log(u) * (double)(1ull << l)); /* 37 intervals at most: lg is 40 at most (config.c) */
}

/* The count fell below zero: is the request of n bytes that did it sampled? */
static bool sampled(size_t n)
{
	if (!atomic_load_explicit(&on, memory_order_relaxed)) {
		left = INT64_MAX;
		return false;
	}
	if (!rng) {
		/* This thread's first request. */
		seed();
		left = draw() - (int64_t)n;
		if (left >= 0)
			return false;
	}
	left = draw();
	return true;
}

static inline bool counted_down(size_t n)
{
	left -= (int64_t)hw_slots_round(n);
	return hw_unlikely(left < 0);
}

/* ---------------------------------------------------------------- in place of pymalloc's four */

/* pymalloc counts one more block that it had from malloc, and that one is given back behind its back. */
static void count_in(void)
{
	void *large = real.malloc(NULL, HW_SLOT + 1);
	if (large)
		py.raw_free(large);
}

static void *take_slot(size_t n)
{
	void *p = hw_slots_take(hw_slots_round(n), lg);
	if (p && atomic_load_explicit(&past, memory_order_relaxed))
		count_in();
	return p;
}

static void give_back(void *p)
{
	if (atomic_load_explicit(&past, memory_order_relaxed))
		real.free(NULL, p);
	else
		hw_slots_release(p);
}

static void *take(size_t n)
{
	int keep = errno;
	void *p = sampled(hw_slots_round(n)) ? take_slot(n) : NULL;
	errno = keep;
	return p;
}

static __attribute__((noinline)) void *malloc_taken(void *ctx, size_t n)
{
	void *p = take(n);
	return p ? p : real.malloc(ctx, n);
}

static void *object_malloc(void *ctx, size_t n)
{
	if (hw_likely(n <= HW_SLOT) && counted_down(n))
		return malloc_taken(ctx, n);
	return real.malloc(ctx, n);
}

static __attribute__((noinline)) void *calloc_taken(void *ctx, size_t n, size_t size)
{
	void *p = take(n * size);
	return p ? memset(p, 0, n * size) : real.calloc(ctx, n, size);
}

static void *object_calloc(void *ctx, size_t n, size_t size)
{
	size_t all;
	if (hw_likely(!__builtin_mul_overflow(n, size, &all) && all <= HW_SLOT) && counted_down(all))
		return calloc_taken(ctx, n, size);
	return real.calloc(ctx, n, size);
}

static void object_free(void *ctx, void *p)
{
	if (hw_unlikely(hw_slots_have(p))) {
		hw_slots_release(p);
		return;
	}
	real.free(ctx, p);
}

/* A block of ours becomes one of n bytes: stays if it is sampled again, else goes to pymalloc. */
static __attribute__((noinline)) void *realloc_ours(void *ctx, void *p, size_t n)
{
	bool small = n && n <= HW_SLOT;
	int keep = errno;
	bool again = small && counted_down(n) && sampled(hw_slots_round(n));
	void *q = again ? NULL : real.malloc(ctx, n);
	if (q) {
		size_t had = hw_slots_size(p);
		memcpy(q, p, had < n ? had : n);
		give_back(p);
		return q;
	}
	if (!small)
		return NULL; /* no memory, and the block stays as it was */
	hw_slots_again(p, hw_slots_round(n), lg);
	errno = keep;
	return p;
}

/* A block that is not ours becomes a sampled one. pymalloc resizes it first, since only pymalloc knows its size; if malloc had a
 * hand in that, the block is malloc's (Objects/obmalloc.c: one that was large stays there when it shrinks) or no longer small,
 * and jemalloc has decided about it. */
static __attribute__((noinline)) void *realloc_taken(void *ctx, void *p, size_t n)
{
	int keep = errno;
	bool ours = sampled(hw_slots_round(n));
	uint64_t before = ours ? hw_alloc_thread_allocated() : 0;
	errno = keep;
	void *q = real.realloc(ctx, p, n);
	if (!q || !ours || hw_alloc_thread_allocated() != before)
		return q;
	void *slot = take_slot(n);
	if (!slot)
		return q;
	memcpy(slot, q, n);
	real.free(ctx, q);
	errno = keep;
	return slot;
}

static void *object_realloc(void *ctx, void *p, size_t n)
{
	if (hw_unlikely(!p))
		return object_malloc(ctx, n);
	if (hw_unlikely(hw_slots_have(p)))
		return realloc_ours(ctx, p, n);
	if (hw_likely(n <= HW_SLOT) && counted_down(n))
		return realloc_taken(ctx, p, n);
	return real.realloc(ctx, p, n);
}

/* ---------------------------------------------------------------- coming and going */

static bool same(const struct allocator *a, const struct allocator *b)
{
	return a->ctx == b->ctx && a->malloc == b->malloc && a->calloc == b->calloc && a->realloc == b->realloc && a->free == b->free;
}

/* Is pymalloc what serves both domains, and nothing before it? Its ctx is NULL and its functions are not those of the raw domain;
 * the debug hooks have a ctx, mimalloc has other functions for each domain, and without pymalloc all three domains are one
 * (Objects/obmalloc.c, PYMEM_ALLOC and what stands beside it). */
static const char *not_pymalloc(const struct allocator *obj, const struct allocator *mem, const struct allocator *raw)
{
	if (same(obj, raw))
		return "objects are served by malloc";
	if (obj->ctx || !same(obj, mem))
		return "objects are not served by pymalloc alone (a debug build or debug hooks, mimalloc, or another tool)";
	return NULL;
}

static void off(const char *why)
{
	atomic_store(&on, false);
	snprintf(state, sizeof state, "off: %s", why);
}

static const char *look(struct allocator *obj, struct allocator *raw)
{
	struct allocator mem;
	py.get(OBJ, obj);
	py.get(MEM, &mem);
	py.get(RAW, raw);
	return not_pymalloc(obj, &mem, raw);
}

static void install(const struct allocator *a)
{
	struct allocator obj = *a, mem = *a;
	py.set(OBJ, &obj);
	py.set(MEM, &mem);
}

static const struct allocator ours = {NULL, object_malloc, object_calloc, object_realloc, object_free};

/* Frees go past us from now on. Blocks that were sampled before were not counted in. */
static void let_frees_past(void)
{
	struct allocator a = ours;
	a.free = real.free;
	for (uint32_t n = hw_slots_live(); n; n--)
		count_in();
	atomic_store(&past, true);
	install(&a);
}

/* The raw domain is the interpreter's own, and what it serves comes from our malloc. */
static bool raw_is_malloc(const struct allocator *raw)
{
	if (!same(raw, &raw_at_start))
		return false;
	uint64_t before = hw_alloc_thread_allocated();
	void *p = py.raw_malloc(64);
	bool ours = hw_alloc_thread_allocated() != before;
	py.raw_free(p);
	return ours;
}

static bool find_symbols(void)
{
	const struct {
		void *to;
		const char *name;
	} symbols[] = {
		{&py.get, "PyMem_GetAllocator"},
		{&py.set, "PyMem_SetAllocator"},
		{&py.malloc, "PyObject_Malloc"},
		{&py.free, "PyObject_Free"},
		{&py.raw_malloc, "PyMem_RawMalloc"},
		{&py.raw_free, "PyMem_RawFree"},
	};
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *s = hw_py_symbol(symbols[i].name);
		if (!s)
			return false;
		*(void **)symbols[i].to = s;
	}
	return true;
}

void hw_objects_start(void)
{
	if (hw_config.python_objects == HW_OBJECTS_OFF) {
		off("HEAPWIRE_PYTHON_OBJECTS=off");
		return;
	}
	/* Before the interpreter is up both tables are there and nobody uses them. An interpreter of which nothing is known, and one
	 * that would not be asked whether all is well (exit.c), is left alone. */
	if (hw_py_on_trial()) {
		off("free-threaded: objects are served by mimalloc");
		return;
	}
	if (strcmp(hw_py_frames_state(), "on") || !find_symbols()) {
		off(*hw_py_version() ? "no Python frames" : "no Python in this process");
		return;
	}
	const char *why = look(&real, &raw_at_start);
	if (why) {
		off(why);
		return;
	}
	if (hw_config.python_objects == HW_OBJECTS_MALLOC) {
		/* What PYTHONMALLOC=malloc makes of it, without a variable that children would inherit. */
		install(&raw_at_start);
		strcpy(state, "malloc");
		return;
	}
	if (!hw_slots_init()) {
		off("no memory for sampled objects");
		return;
	}
	lg = 63u - (unsigned)__builtin_clzll(hw_alloc_sample_bytes());
	atomic_store(&on, true);
	install(&ours);
	strcpy(state, "on");
}

/* Asks for a block, sampled for certain, and gives it back. */
static const char *probe(bool *reached)
{
	left = 0;
	rng += !rng;
	void *p = py.malloc(48);
	*reached = hw_slots_have(p);
	py.free(p);
	return *reached && hw_slots_size(p) ? "a sampled object was freed, and it was not told here" : NULL;
}

static bool looked;

void hw_objects_check(void)
{
	struct allocator obj, raw;
	if (looked)
		return;
	looked = true;
	if (!strcmp(state, "malloc")) {
		py.get(OBJ, &obj);
		py.get(RAW, &raw);
		if (!same(&obj, &raw))
			off("PYTHONMALLOC, -X dev or another tool has chosen the allocator");
		return;
	}
	if (!atomic_load(&on))
		return;
	bool reached;
	const char *why = probe(&reached);
	/* PYTHONMALLOC has put an allocator of the interpreter's in our place, before anything was allocated. If it is pymalloc we come
	 * before it again. */
	if (!reached) {
		why = look(&obj, &raw);
		if (!why && !same(&obj, &real))
			why = "objects are not served by the pymalloc that was there at start";
		if (!why) {
			install(&ours);
			why = probe(&reached);
		}
		if (!why && !reached)
			why = "requests for objects do not come here";
	}
	if (why) {
		off(why);
		return;
	}
	py.get(OBJ, &obj);
	py.get(RAW, &raw);
	if (!same(&obj, &ours) || !raw_is_malloc(&raw))
		return;
	let_frees_past();
	if (probe(&reached)) { /* against all that is known of pymalloc */
		atomic_store(&past, false);
		install(&ours);
	}
}

void hw_objects_interval(unsigned lg_sample)
{
	atomic_store_explicit(&lg, lg_sample, memory_order_relaxed);
}

void hw_objects_forked(void)
{
	hw_slots_forked();
	/* Siblings must not sample alike. The draw has no memory: a new one is as good as what is left. */
	if (rng) {
		seed();
		left = draw();
	}
}

const char *hw_objects_state(void)
{
	return state;
}
