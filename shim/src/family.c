/* family.c: the malloc family in front of jemalloc's.
 *
 * What the program calls. One comparison, then jemalloc's function by a jump: a request from HEAPWIRE_GIANT on is noted first
 * (giant.c). jemalloc's own symbols are renamed to je_… in the archive that is linked in (Makefile).
 *
 * Sampled Python objects lie in memory of their own (slots.c). The interpreter gives them to free and realloc here when its object
 * allocator was exchanged while they lived: one comparison tells them.
 *
 * pvalloc is here because jemalloc has none: glibc's would hand out glibc's memory, which the next free of ours would crash on.
 */
#include "shim.h"

#include "giant.h"
#include "slots.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

void *je_malloc(size_t);
void *je_calloc(size_t, size_t);
void *je_realloc(void *, size_t);
int je_posix_memalign(void **, size_t, size_t);
void *je_aligned_alloc(size_t, size_t);
void *je_memalign(size_t, size_t);
void *je_valloc(size_t);
void je_free(void *);

/* jemalloc 5.3.0 leaves errno as it was when these fail: realloc, memalign, valloc. */
static __attribute__((noinline)) void *out_of_memory(void)
{
	errno = ENOMEM;
	return NULL;
}

static inline void look(size_t n, const char *call)
{
	if (hw_unlikely(n >= hw_giant_bytes))
		hw_giant_note(n, call);
}

HW_EXPORT void *malloc(size_t n)
{
	look(n, "malloc");
	return je_malloc(n);
}

HW_EXPORT void *calloc(size_t n, size_t size)
{
	size_t all;
	look(__builtin_mul_overflow(n, size, &all) ? SIZE_MAX - 1 : all, "calloc");
	return je_calloc(n, size);
}

HW_EXPORT void free(void *p)
{
	if (hw_unlikely(hw_slots_have(p)))
		hw_slots_release(p);
	else
		je_free(p);
}

static __attribute__((noinline)) void *realloc_object(void *p, size_t n)
{
	size_t had = hw_slots_size(p);
	void *q = je_malloc(n);
	if (!q)
		return out_of_memory();
	memcpy(q, p, had < n ? had : n);
	hw_slots_release(p);
	return q;
}

HW_EXPORT void *realloc(void *p, size_t n)
{
	look(n, "realloc");
	if (hw_unlikely(hw_slots_have(p)))
		return realloc_object(p, n);
	void *q = je_realloc(p, n);
	return hw_likely(q || !n) ? q : out_of_memory();
}

HW_EXPORT int posix_memalign(void **p, size_t align, size_t n)
{
	look(n, "posix_memalign");
	return je_posix_memalign(p, align, n);
}

HW_EXPORT void *aligned_alloc(size_t align, size_t n)
{
	look(n, "aligned_alloc");
	return je_aligned_alloc(align, n);
}

HW_EXPORT void *memalign(size_t align, size_t n)
{
	look(n, "memalign");
	void *p = je_memalign(align, n);
	return hw_likely(p) ? p : out_of_memory();
}

HW_EXPORT void *valloc(size_t n)
{
	look(n, "valloc");
	void *p = je_valloc(n);
	return hw_likely(p) ? p : out_of_memory();
}

HW_EXPORT void *pvalloc(size_t n)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	look(n, "pvalloc");
	if (n > SIZE_MAX - page + 1)
		return out_of_memory();
	size_t whole = (n + page - 1) & ~(page - 1);
	void *p = je_memalign(page, whole ? whole : page);
	return hw_likely(p) ? p : out_of_memory();
}
