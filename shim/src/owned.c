/* owned.c: which memory is whose: what jemalloc has mapped, and pymalloc's arenas.
 *
 * Neighbouring anonymous mappings are one line of /proc/self/maps, whoever made them: only who maps can tell. jemalloc's calls
 * of mmap and munmap come here (the Makefile renames them in its archive); it keeps what it has mapped and maps ever larger
 * pieces, so they are few. pymalloc asks an allocator of arenas, which CPython lets itself be given one of
 * (PyObject_SetArenaAllocator, since 3.4).
 *
 * Called with any of jemalloc's locks held, on any thread, from the first malloc on: no lock, no allocation.
 */
#include "owned.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- jemalloc's mappings
 *
 * A log: a mapping is noted after it was made, its end before it is unmapped, so that for one address the order of the entries
 * is that of the calls. The clock thread folds it into ranges. */
#define LOG 16384u

static struct {
	uintptr_t start;
	_Atomic size_t size; /* with the lowest bit: unmapped. 0: not written yet */
} entries[LOG];
static _Atomic uint32_t logged;
static _Atomic uint64_t log_lost;

static void note(void *start, size_t size, size_t unmapped)
{
	uint32_t i = atomic_load_explicit(&logged, memory_order_relaxed);
	do {
		if (i == LOG) {
			atomic_fetch_add_explicit(&log_lost, 1, memory_order_relaxed);
			return;
		}
	} while (!atomic_compare_exchange_weak(&logged, &i, i + 1));
	entries[i].start = (uintptr_t)start;
	atomic_store_explicit(&entries[i].size, size | unmapped, memory_order_release);
}

void *hw_owned_map(void *at, size_t size, int prot, int flags, int fd, off_t offset);
void *hw_owned_map(void *at, size_t size, int prot, int flags, int fd, off_t offset)
{
	void *p = mmap(at, size, prot, flags, fd, offset);
	/* At start jemalloc reads small files and asks which pages it may have: all that is anonymous counts. */
	if (p != MAP_FAILED && fd < 0)
		note(p, size, 0);
	return p;
}

int hw_owned_unmap(void *at, size_t size);
int hw_owned_unmap(void *at, size_t size)
{
	note(at, size, 1);
	return munmap(at, size);
}

/* ---------------------------------------------------------------- pymalloc's arenas */

struct arena_allocator { /* PyObjectArenaAllocator, Include/cpython/objimpl.h */
	void *ctx;
	void *(*alloc)(void *ctx, size_t size);
	void (*free)(void *ctx, void *p, size_t size);
};

#define ARENAS (1u << 15)
#define PROBES 64u
#define GONE 1u

static _Atomic uintptr_t arenas[ARENAS]; /* 0: never used; GONE */
static _Atomic size_t arena_size;        /* all have one size: 256 KiB up to 3.9, 1 MiB from 3.10 on */
static _Atomic uint64_t arenas_lost;
static struct arena_allocator python;

static uint32_t place(uintptr_t p)
{
	return (uint32_t)((p >> 12) * 0x9E3779B97F4A7C15ull >> 32);
}

static void *arena_alloc(void *ctx, size_t size)
{
	(void)ctx;
	void *p = python.alloc(python.ctx, size);
	if (!p)
		return p;
	atomic_store_explicit(&arena_size, size, memory_order_relaxed);
	uint32_t at = place((uintptr_t)p);
	for (uint32_t i = 0; i < PROBES; i++) {
		_Atomic uintptr_t *slot = &arenas[(at + i) % ARENAS];
		uintptr_t old = atomic_load_explicit(slot, memory_order_relaxed);
		if (old <= GONE && atomic_compare_exchange_strong(slot, &old, (uintptr_t)p))
			return p;
	}
	atomic_fetch_add(&arenas_lost, 1);
	return p;
}

static void arena_free(void *ctx, void *p, size_t size)
{
	(void)ctx;
	uint32_t at = place((uintptr_t)p);
	for (uint32_t i = 0; i < PROBES; i++) {
		uintptr_t mine = (uintptr_t)p;
		if (atomic_compare_exchange_strong(&arenas[(at + i) % ARENAS], &mine, GONE))
			break;
	}
	python.free(python.ctx, p, size);
}

void hw_owned_init(void)
{
	void (*get)(struct arena_allocator *) = (void (*)(struct arena_allocator *))dlsym(RTLD_DEFAULT, "PyObject_GetArenaAllocator");
	void (*set)(struct arena_allocator *) = (void (*)(struct arena_allocator *))dlsym(RTLD_DEFAULT, "PyObject_SetArenaAllocator");
	if (!get || !set)
		return;
	get(&python);
	if (!python.alloc || !python.free)
		return;
	set(&(struct arena_allocator){NULL, arena_alloc, arena_free});
}

/* ---------------------------------------------------------------- reading */

static int by_start(const void *a, const void *b)
{
	const struct hw_range *x = a, *y = b;
	return x->start < y->start ? -1 : x->start > y->start ? 1 : (int)x->owner - (int)y->owner;
}

size_t hw_owned_sort(struct hw_range *r, size_t n)
{
	qsort(r, n, sizeof *r, by_start); /* glibc's allocates for more than 1 KiB: not in the sampling hook */
	size_t kept = 0;
	for (size_t i = 0; i < n; i++) {
		struct hw_range *last = kept ? &r[kept - 1] : NULL;
		struct hw_range x = r[i];
		if (last && x.start < last->end)
			x.start = last->end;
		if (x.start >= x.end)
			continue;
		if (last && last->end == x.start && last->owner == x.owner)
			last->end = x.end;
		else
			r[kept++] = x;
	}
	return kept;
}

/* Takes [start, end) away from the first n ranges. */
static size_t take_away(struct hw_range *r, size_t n, size_t cap, uintptr_t start, uintptr_t end)
{
	for (size_t i = 0, all = n; i < all; i++) {
		if (r[i].end <= start || r[i].start >= end)
			continue;
		struct hw_range right = {end, r[i].end, r[i].owner};
		r[i].end = r[i].start < start ? start : r[i].start; /* empty ones are dropped by the sort */
		if (right.start < right.end && n < cap)
			r[n++] = right;
	}
	return n;
}

size_t hw_owned_arena_bytes(void)
{
	return atomic_load(&arena_size);
}

size_t hw_owned_ranges(struct hw_range *r, size_t cap, uint64_t *lost)
{
	size_t n = 0;
	*lost = atomic_load(&log_lost) + atomic_load(&arenas_lost);
	uint32_t end = atomic_load(&logged);
	for (uint32_t i = 0; i < end; i++) {
		size_t size = atomic_load_explicit(&entries[i].size, memory_order_acquire);
		uintptr_t start = entries[i].start;
		if (!size)
			continue;
		if (size & 1)
			n = take_away(r, n, cap, start, start + (size & ~(size_t)1));
		else if (n < cap)
			r[n++] = (struct hw_range){start, start + size, HW_OWNER_ALLOCATOR};
		else
			++*lost;
	}
	size_t size = atomic_load(&arena_size);
	for (uint32_t i = 0; i < ARENAS && size; i++) {
		uintptr_t p = atomic_load_explicit(&arenas[i], memory_order_relaxed);
		if (p <= GONE)
			continue;
		if (n < cap)
			r[n++] = (struct hw_range){p, p + size, HW_OWNER_ARENA};
		else
			++*lost;
	}
	return hw_owned_sort(r, n);
}
