/* slots.c: sampled small Python objects: the memory they lie in, and the books about them.
 *
 * One reserved piece of memory, so that a range check tells a block of ours from any other, cut into slots of one size: one
 * object in many thousands is sampled, so what a slot wastes is nothing beside what the objects take that are not. Beside it,
 * out of the program's reach, a record a slot with the size and the stack of the request: nothing is looked up, nothing has to
 * be thrown away, and the books are as big as what is live.
 *
 * hw_slots_take, _again, _release and _size run in the interpreter's allocator, on any thread, with any lock of the program held
 * by anybody, for interpreters with a GIL of their own on several threads at once: no lock, no allocation, no waiting, errno
 * kept. Free slots are a stack whose top has a count against reuse between look and exchange (the ABA problem). A fork at any
 * instant leaves it usable: what a thread that is gone was about to take stays taken.
 *
 * A record is read while others write: its state word, with a count of its own, is read before and after.
 *
 * The child of a fork has its parent's objects but not its books: records carry the number of forks that led to them.
 */
#include "slots.h"

#include "intern.h"
#include "sample.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define DEPTH 126u /* what makes a record 1 KiB */

/* State: uses of the slot (32 bits) | forks (13) | lg (6) | frames (7) | size / 16 (6), which is 0 while nothing is there. */
#define USES_SHIFT 32
#define FORKS_SHIFT 19
#define FORKS_MASK 0x1fffu
#define LG_SHIFT 13
#define LG_MASK 63u
#define LEN_SHIFT 6
#define LEN_MASK 127u
#define SIZE_MASK 63u

struct record {
	_Atomic uint64_t state;
	_Atomic uint32_t next; /* the free slot below this one, plus 1 */
	_Atomic uint64_t frames[DEPTH];
};

_Static_assert(sizeof(struct record) == 1024, "four to a page");

uintptr_t hw_slots_base = 1ull << 63;

static struct record *records;
static _Atomic uint64_t top;   /* of the free slots: count << 32 | slot + 1 */
static _Atomic uint32_t fresh; /* slots from here on were never used */
static _Atomic uint32_t forks;
static _Atomic uint64_t samples, lost;

static void *reserve(size_t size)
{
	void *m = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return m == MAP_FAILED ? NULL : m;
}

bool hw_slots_init(void)
{
	records = reserve(HW_SLOTS * sizeof *records);
	void *m = records ? reserve(HW_SLOTS_BYTES) : NULL;
	if (!m)
		return false;
	/* Used here and there: a huge page a sample would be dear. */
	madvise(records, HW_SLOTS * sizeof *records, MADV_NOHUGEPAGE);
	madvise(m, HW_SLOTS_BYTES, MADV_NOHUGEPAGE);
	hw_slots_base = (uintptr_t)m;
	return true;
}

/* ---------------------------------------------------------------- slots */

#define TRIES 100 /* others got in between so often: not sampled then */

static bool pop(uint32_t *slot)
{
	uint64_t t = atomic_load_explicit(&top, memory_order_acquire);
	for (int i = 0; (uint32_t)t; i++) {
		if (i == TRIES)
			return false;
		*slot = (uint32_t)t - 1;
		uint32_t next = atomic_load_explicit(&records[*slot].next, memory_order_relaxed);
		uint64_t to = ((t >> 32) + 1) << 32 | next;
		if (atomic_compare_exchange_weak_explicit(&top, &t, to, memory_order_acquire, memory_order_acquire))
			return true;
	}
	if (atomic_load_explicit(&fresh, memory_order_relaxed) >= HW_SLOTS)
		return false;
	*slot = atomic_fetch_add_explicit(&fresh, 1, memory_order_relaxed);
	return *slot < HW_SLOTS;
}

static void push(uint32_t slot)
{
	uint64_t t = atomic_load_explicit(&top, memory_order_relaxed), to;
	do {
		atomic_store_explicit(&records[slot].next, (uint32_t)t, memory_order_relaxed);
		to = ((t >> 32) + 1) << 32 | (slot + 1);
	} while (!atomic_compare_exchange_weak_explicit(&top, &t, to, memory_order_release, memory_order_relaxed));
}

static uint32_t slot_of(const void *p)
{
	return (uint32_t)(((uintptr_t)p - hw_slots_base) / HW_SLOT);
}

static void book(uint32_t slot, size_t size, unsigned lg)
{
	void *stack[DEPTH];
	int keep_errno = errno;
	unsigned n = hw_sample_capture(stack, DEPTH);
	errno = keep_errno;
	struct record *r = &records[slot];
	uint64_t uses = (atomic_load_explicit(&r->state, memory_order_relaxed) >> USES_SHIFT) + 1;
	atomic_store_explicit(&r->state, uses << USES_SHIFT, memory_order_relaxed);
	/* Whoever loads one of these with acquire sees the state above, or a later one. */
	for (unsigned i = 0; i < n; i++)
		atomic_store_explicit(&r->frames[i], (uint64_t)stack[i], memory_order_release);
	uint64_t state = uses << USES_SHIFT | (uint64_t)(atomic_load_explicit(&forks, memory_order_relaxed) & FORKS_MASK) << FORKS_SHIFT |
			 (uint64_t)(lg & LG_MASK) << LG_SHIFT | (uint64_t)n << LEN_SHIFT | size / 16;
	atomic_store_explicit(&r->state, state, memory_order_release);
	atomic_fetch_add_explicit(&samples, 1, memory_order_relaxed);
	HW_INC(samples);
}

void *hw_slots_take(size_t size, unsigned lg)
{
	uint32_t slot;
	if (!pop(&slot)) {
		atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
		return NULL;
	}
	book(slot, size, lg);
	return (void *)(hw_slots_base + (uintptr_t)slot * HW_SLOT);
}

void hw_slots_again(void *p, size_t size, unsigned lg)
{
	book(slot_of(p), size, lg);
}

void hw_slots_release(void *p)
{
	struct record *r = &records[slot_of(p)];
	uint64_t state = atomic_load_explicit(&r->state, memory_order_relaxed);
	if (!(state & SIZE_MASK))
		return; /* freed twice: the program's fault, and not to be made worse */
	atomic_store_explicit(&r->state, state >> USES_SHIFT << USES_SHIFT, memory_order_relaxed);
	push(slot_of(p));
}

size_t hw_slots_size(const void *p)
{
	return (atomic_load_explicit(&records[slot_of(p)].state, memory_order_relaxed) & SIZE_MASK) * 16;
}

uint32_t hw_slots_live(void)
{
	uint32_t n = 0, end = atomic_load_explicit(&fresh, memory_order_relaxed);
	for (uint32_t slot = 0; slot < end && slot < HW_SLOTS; slot++)
		n += (atomic_load_explicit(&records[slot].state, memory_order_relaxed) & SIZE_MASK) != 0;
	return n;
}

void hw_slots_forked(void)
{
	atomic_fetch_add(&forks, 1);
	atomic_store(&samples, 0);
	atomic_store(&lost, 0);
}

uint64_t hw_slots_samples(void)
{
	return atomic_load_explicit(&samples, memory_order_relaxed);
}

uint64_t hw_slots_lost(void)
{
	return atomic_load_explicit(&lost, memory_order_relaxed);
}

/* ---------------------------------------------------------------- the section
 *
 * One line pair for the objects of one stack, one size and one interval: objects of one size have one probability, so nothing
 * has to be guessed about a mean. Working memory is mapped for the time being. */

struct group {
	uint64_t key;
	uint32_t objects, at; /* at: of the frames, in the arena */
	uint16_t size;
	uint8_t lg, len;
};

static struct {
	struct group *table;
	uint64_t *arena;
	uint32_t mask, used; /* used: words of the arena */
	uint64_t lgs;        /* a bit for each interval that occurs */
} groups;

/* The record as of one moment, if it is this process's. */
static bool read_record(uint32_t slot, struct group *g, uint64_t *frames)
{
	struct record *r = &records[slot];
	uint64_t state = atomic_load_explicit(&r->state, memory_order_acquire);
	if (!(state & SIZE_MASK) || (state >> FORKS_SHIFT & FORKS_MASK) != (atomic_load_explicit(&forks, memory_order_relaxed) & FORKS_MASK))
		return false;
	*g = (struct group){.objects = 1, .size = (uint16_t)((state & SIZE_MASK) * 16), .lg = (uint8_t)(state >> LG_SHIFT & LG_MASK),
			    .len = (uint8_t)(state >> LEN_SHIFT & LEN_MASK)};
	g->key = hw_mix((uint64_t)g->size << 16 | (uint64_t)g->lg << 8 | g->len, 0);
	for (unsigned i = 0; i < g->len; i++) {
		frames[i] = atomic_load_explicit(&r->frames[i], memory_order_acquire);
		g->key = hw_mix(g->key, frames[i]);
	}
	g->key |= 1; /* an empty place has 0 */
	return atomic_load_explicit(&r->state, memory_order_relaxed) == state;
}

static void add(const struct group *g, const uint64_t *frames)
{
	for (uint32_t i = (uint32_t)(g->key >> 32) & groups.mask;; i = (i + 1) & groups.mask) {
		struct group *to = &groups.table[i];
		if (to->key == g->key) {
			to->objects++;
			return;
		}
		if (to->key)
			continue;
		*to = *g;
		to->at = groups.used;
		memcpy(groups.arena + groups.used, frames, g->len * sizeof *frames);
		groups.used += g->len;
		groups.lgs |= 1ull << g->lg;
		return;
	}
}

static void write_group(struct hw_out *o, const struct group *g, const uint64_t *frames, void (*used)(uint64_t address))
{
	hw_out_char(o, '@');
	for (unsigned i = 0; i < g->len; i++) {
		hw_out_str(o, " 0x");
		hw_out_hex(o, frames[i]);
		used(frames[i]);
	}
	hw_out_str(o, "\n  t*: ");
	hw_out_dec(o, g->objects);
	hw_out_str(o, ": ");
	hw_out_dec(o, (uint64_t)g->objects * g->size);
	hw_out_str(o, " [0: 0]\n");
}

static void write_interval(struct hw_out *o, unsigned lg)
{
	hw_out_str(o, "heap_v2/");
	hw_out_dec(o, 1ull << lg);
	hw_out_char(o, '\n');
}

static void write_groups(struct hw_out *o, void (*used)(uint64_t address))
{
	for (unsigned lg = 0; lg < 64; lg++) {
		if (!(groups.lgs >> lg & 1))
			continue;
		write_interval(o, lg);
		for (uint32_t i = 0; i <= groups.mask; i++)
			if (groups.table[i].key && groups.table[i].lg == lg)
				write_group(o, &groups.table[i], groups.arena + groups.table[i].at, used);
	}
}

void hw_slots_write(struct hw_out *o, void (*used)(uint64_t address))
{
	uint32_t n = atomic_load_explicit(&fresh, memory_order_relaxed);
	if (n > HW_SLOTS)
		n = HW_SLOTS;
	if (!n || !hw_slots_samples())
		return;
	hw_out_str(o, "HEAPWIRE_OBJECTS: 1\n");
	uint32_t places = 64;
	while (places < 2 * n)
		places *= 2;
	size_t table_bytes = places * sizeof *groups.table, arena_bytes = (size_t)n * DEPTH * sizeof *groups.arena;
	groups.table = reserve(table_bytes + arena_bytes);
	groups.arena = groups.table ? (uint64_t *)((char *)groups.table + table_bytes) : NULL;
	groups.mask = places - 1;
	groups.used = 0;
	groups.lgs = 0;
	struct group g;
	uint64_t frames[DEPTH];
	int lg = -1;
	for (uint32_t slot = 0; slot < n; slot++) {
		if (!read_record(slot, &g, frames))
			continue;
		if (groups.table) {
			add(&g, frames);
			continue;
		}
		/* No memory: object by object. */
		if (lg != g.lg)
			write_interval(o, (unsigned)(lg = g.lg));
		write_group(o, &g, frames, used);
	}
	if (groups.table) {
		write_groups(o, used);
		munmap(groups.table, table_bytes + arena_bytes);
	}
	hw_out_char(o, '\n');
}
