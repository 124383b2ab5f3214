/* sample.c: the sampling hook: one stack, native leaf frames and Python frames, for one sampled allocation.
 *
 * Runs inside malloc, called by jemalloc before it takes any profiling lock, with its reentrancy level raised; on any
 * thread, with any lock of the program held by anybody, even inside the dynamic loader, a signal handler or a dying thread.
 * So: no lock, no allocation, no system call (but those of pyframes.c and native.c, which wait for no lock of the program), no
 * lazy binding, no thread-local storage but the initial-exec kind, bounded loops, little stack (threads with 16 KiB exist), errno
 * kept.
 *
 * Working memory comes from a small pool of slots in mapped memory, claimed by one bit each. A thread starts looking at a
 * place of its own, so that two threads seldom meet. With all slots taken the sample has no stack and is counted.
 *
 * Leaf mode: the native frames between malloc and the innermost Python frame, then all Python frames. A stack that is
 * deeper than jemalloc takes keeps both ends with one constant marker between: a count in the marker would make each
 * recursion depth a stack of its own.
 */
#include "sample.h"

#include "config.h"
#include "intern.h"
#include "native.h"
#include "pyframes.h"

#include <errno.h>
#include <sys/mman.h>

#define SLOTS 64u
#define ROOT_KEPT 31u /* of jemalloc's 128: 96 leaf entries, the marker, 31 root entries */

_Static_assert(ROOT_KEPT <= HW_KEEP_ROOT, "the walks keep what is put down");

#define MERGED 384u /* entries of a full stack that are looked at: more than both walks keep at the leaf */

struct scratch {
	struct hw_pywalk py;
	struct hw_natwalk nat;
	/* Full stacks: each entry's number, Python's with the top bit. */
	uint16_t merged[MERGED];
};

static struct scratch *slots;
static _Atomic uint64_t taken; /* a bit a slot */

struct hw_counters hw_count;

bool hw_sample_init(void)
{
	void *m = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED)
		return false;
	slots = m;
	return true;
}

static int claim(void)
{
	unsigned first = (unsigned)(hw_thread_pointer() * 0x9E3779B97F4A7C15ull >> 58);
	for (unsigned i = 0; i < SLOTS; i++) {
		unsigned s = (first + i) % SLOTS;
		uint64_t bit = 1ull << s;
		if (!(atomic_fetch_or_explicit(&taken, bit, memory_order_acquire) & bit))
			return (int)s;
	}
	return -1;
}

static void release(int s)
{
	atomic_fetch_and_explicit(&taken, ~(1ull << s), memory_order_release);
}

void hw_sample_forked(void)
{
	atomic_store(&taken, 0);
}

/* Entry i of the whole stack, native frames first. Only called for i among the first HW_KEEP_LEAF or the last ROOT_KEPT. */
static uint64_t entry(const struct scratch *s, uint32_t i)
{
	if (i < s->nat.total)
		return i < HW_KEEP_LEAF ? s->nat.leaf[i] : s->nat.root[i % HW_KEEP_ROOT];
	i -= s->nat.total;
	if (i < s->py.total)
		return hw_py_encode(i < HW_KEEP_LEAF ? &s->py.leaf[i] : &s->py.root[i % HW_KEEP_ROOT]);
	return HW_MARK_STOPPED;
}

static unsigned put_down(const struct scratch *s, void **vec, unsigned max)
{
	uint32_t total = s->nat.total + s->py.total + s->py.stopped;
	if (max > HW_KEEP_LEAF)
		max = HW_KEEP_LEAF;
	uint32_t leaf = total, root = 0;
	if (total > max) {
		HW_INC(stacks_cut);
		root = max > 2 * ROOT_KEPT ? ROOT_KEPT : max / 4;
		leaf = max - 1 - root;
	}
	unsigned n = 0;
	for (uint32_t i = 0; i < leaf; i++)
		vec[n++] = (void *)entry(s, i);
	if (leaf < total)
		vec[n++] = (void *)HW_MARK_CUT;
	for (uint32_t i = total - root; i < total; i++)
		vec[n++] = (void *)entry(s, i);
	return n;
}

/* ---------------------------------------------------------------- full stacks
 *
 * Every native frame, with each run of Python frames in place of the C frame that executes it: the one whose part of the stack
 * holds the run's marker (pyframes.h). Names do not do: a compiler may split the eval loop over several symbols, and 452 of 600
 * stacks were wrong that way on such builds. On 3.8 and 3.9, which have no marker, the next run belongs to the next frame in the
 * eval loop. Runs whose native frames were not reached go to the root end, in order. */
#define PYTHON 0x8000u

static uint32_t put_run(struct scratch *s, uint32_t n, uint32_t *next, uint32_t end)
{
	for (; *next < end && *next < HW_KEEP_LEAF && n < MERGED; (*next)++)
		s->merged[n++] = (uint16_t)(PYTHON | *next);
	return n;
}

static uint32_t merge(struct scratch *s)
{
	uint32_t n = 0, next = 0, run = 0;
	uintptr_t from = s->nat.begins;
	for (uint32_t i = 0; i < s->nat.total && i < HW_KEEP_LEAF && n < MERGED; i++) {
		uintptr_t to = s->nat.ends[i];
		bool replaced = false;
		while (run < s->py.nruns && to && s->py.runs[run].at && s->py.runs[run].at >= from && s->py.runs[run].at < to) {
			n = put_run(s, n, &next, s->py.runs[run++].end);
			replaced = true;
		}
		if (run < s->py.nruns && !s->py.runs[run].at && hw_py_is_eval(s->nat.leaf[i] - 1)) {
			n = put_run(s, n, &next, s->py.runs[run++].end);
			replaced = true;
		}
		if (!replaced && n < MERGED)
			s->merged[n++] = (uint16_t)i;
		from = to;
	}
	return put_run(s, n, &next, s->py.total);
}

static uint64_t merged_entry(const struct scratch *s, uint32_t i)
{
	uint16_t m = s->merged[i];
	return m & PYTHON ? hw_py_encode(&s->py.leaf[m & ~PYTHON]) : s->nat.leaf[m];
}

static unsigned put_down_full(struct scratch *s, void **vec, unsigned max)
{
	uint32_t total = merge(s), root = max > 2 * ROOT_KEPT ? ROOT_KEPT : max / 4;
	/* Deeper than the walks keep at the leaf: the root end has Python frames alone, which the ring has. */
	bool deep = s->nat.total > HW_KEEP_LEAF || s->py.total > HW_KEEP_LEAF;
	uint32_t room = max - s->py.stopped, leaf = total;
	if (deep || total > room) {
		HW_INC(stacks_cut);
		leaf = room - 1 - root < total ? room - 1 - root : total;
	}
	unsigned n = 0;
	uint32_t shown = 0; /* Python frames */
	for (uint32_t i = 0; i < leaf; i++) {
		shown += !!(s->merged[i] & PYTHON);
		vec[n++] = (void *)merged_entry(s, i);
	}
	if (deep && root > s->py.total - shown)
		root = s->py.total - shown;
	if (deep || total > room) {
		vec[n++] = (void *)HW_MARK_CUT;
		for (uint32_t k = root; k; k--) {
			uint32_t i = (deep ? s->py.total : total) - k;
			vec[n++] = (void *)(deep ? hw_py_encode(&s->py.root[i % HW_KEEP_ROOT]) : merged_entry(s, i));
		}
	}
	if (s->py.stopped)
		vec[n++] = (void *)HW_MARK_STOPPED;
	return n;
}

/* Is the allocation the dynamic loader's own? A walk for that question alone; only where it matters. */
static bool called_by_loader(struct hw_natwalk *w)
{
	hw_native_walk(w, 0, false);
	return w->total && hw_native_is_loader(w->leaf[0] - 1);
}

__attribute__((noinline)) unsigned hw_sample_capture(void **vec, unsigned max)
{
	int slot = slots ? claim() : -1;
	if (slot < 0) {
		HW_INC(captures_lost);
		return 0;
	}
	struct scratch *s = &slots[slot];
	if (hw_unlikely(!hw_py_safe_in_loader()) && called_by_loader(&s->nat))
		s->py.total = s->py.nruns = 0, s->py.stopped = false, s->py.boundary = 0;
	else
		hw_py_walk(&s->py);
	bool full = hw_config.full_stacks;
	hw_native_walk(&s->nat, full ? 0 : s->py.boundary, !full && s->py.total && !s->py.boundary);
	if (s->py.total)
		HW_INC(samples_python);
	if (s->py.stopped)
		HW_INC(frames_failed);
	if (s->nat.ended_early)
		HW_INC(native_failed);
	unsigned n = full ? put_down_full(s, vec, max < HW_KEEP_LEAF ? max : HW_KEEP_LEAF) : put_down(s, vec, max);
	release(slot);
	return n;
}

__attribute__((noinline)) void hw_sample_hook(void **vec, unsigned *len, unsigned max)
{
	int keep_errno = errno;
	HW_INC(samples);
	*len = hw_sample_capture(vec, max);
	errno = keep_errno;
}
