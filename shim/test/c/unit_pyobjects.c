/* The wrappers of the interpreter's object allocator, before a made-up interpreter: what is sampled, that no block is lost or
 * mixed up, and who is left alone. */
#define HW_SLOTS_BITS 12
#include "../../src/slots.c"

#include "../../src/pyobjects.c"

#include "check.h"

#include <pthread.h>
#include <stdlib.h>

struct hw_counters hw_count;
struct hw_config hw_config;

unsigned hw_sample_capture(void **vec, unsigned max)
{
	(void)max;
	errno = 99;
	vec[0] = (void *)0x7f0000001234;
	return 1;
}

/* ---------------------------------------------------------------- the interpreter */

static const char *frames_state = "on";
static const char *version = "3.12.1";
static bool on_trial;

const char *hw_py_frames_state(void) { return frames_state; }
const char *hw_py_version(void) { return version; }
bool hw_py_on_trial(void) { return on_trial; }
uint64_t hw_alloc_sample_bytes(void) { return 1ull << hw_config.lg_sample; }

static _Atomic long live;             /* blocks that its pymalloc and malloc have given */
static _Atomic uint64_t by_malloc;    /* bytes malloc was asked for */
static _Atomic long from_malloc;      /* what pymalloc counts of its blocks from malloc */
static bool no_memory, raw_elsewhere;

uint64_t hw_alloc_thread_allocated(void) { return by_malloc; }

/* Blocks with their capacity in front; pymalloc's and malloc's are told apart. */
struct head {
	size_t size;
	bool pymalloc;
} __attribute__((aligned(16)));

static void *give(size_t n, bool small)
{
	if (no_memory)
		return NULL;
	struct head *h = malloc(sizeof *h + (small ? hw_slots_round(n) : n ? n : 1));
	*h = (struct head){n, small};
	atomic_fetch_add(&live, 1);
	if (!small && !raw_elsewhere)
		atomic_fetch_add(&by_malloc, n + 1);
	return h + 1;
}

static void *raw_malloc(void *c, size_t n) { (void)c; return give(n, false); }
static void *raw_calloc(void *c, size_t n, size_t s) { (void)c; return give(n * s, false); }
static void *raw_realloc(void *c, void *p, size_t n)
{
	(void)c;
	struct head *h = (struct head *)p - 1;
	void *q = give(n, false);
	if (!q)
		return NULL;
	memcpy(q, p, h->size < n ? h->size : n);
	atomic_fetch_sub(&live, 1);
	free(h);
	return q;
}
static void raw_free(void *c, void *p)
{
	(void)c;
	if (hw_slots_have(p))
		hw_slots_release(p); /* as family.c does */
	else if (p) {
		atomic_fetch_sub(&live, 1);
		free((struct head *)p - 1);
	}
}

static void *small_malloc(void *c, size_t n)
{
	if (c || hw_slots_have(c))
		abort();
	bool small = n && n <= 512;
	void *p = give(n, small);
	if (p && !small)
		atomic_fetch_add(&from_malloc, 1);
	return p;
}
static void *small_calloc(void *c, size_t n, size_t s)
{
	(void)c;
	size_t all;
	if (__builtin_mul_overflow(n, s, &all))
		return NULL;
	void *p = small_malloc(c, all);
	return p ? memset(p, 0, all) : NULL;
}
static void small_free(void *c, void *p)
{
	if (p && (hw_slots_have(p) || !((struct head *)p - 1)->pymalloc))
		atomic_fetch_sub(&from_malloc, 1);
	raw_free(c, p);
}
static void *small_realloc(void *c, void *p, size_t n)
{
	struct head *h = (struct head *)p - 1;
	if (!p)
		return small_malloc(c, n);
	if (hw_slots_have(p))
		abort(); /* not told here what to do with it */
	if (!h->pymalloc)
		return raw_realloc(c, p, n); /* once malloc's, always malloc's */
	void *q = small_malloc(c, n);
	if (!q)
		return NULL;
	memcpy(q, p, h->size < n ? h->size : n);
	small_free(c, p);
	return q;
}

static const struct allocator raw_table = {NULL, raw_malloc, raw_calloc, raw_realloc, raw_free};
static const struct allocator small_table = {NULL, small_malloc, small_calloc, small_realloc, small_free};
static struct allocator tables[3];
static int sets;

static void get_table(int domain, struct allocator *a) { *a = tables[domain]; }
static void set_table(int domain, struct allocator *a) { tables[domain] = *a; sets++; }
static void *raw_of(size_t n) { return tables[RAW].malloc(tables[RAW].ctx, n); }
static void free_raw(void *p) { tables[RAW].free(tables[RAW].ctx, p); }
static void *object_of(size_t n) { return tables[OBJ].malloc(tables[OBJ].ctx, n); }
static void free_object(void *p) { tables[OBJ].free(tables[OBJ].ctx, p); }

void *hw_py_symbol(const char *name)
{
	return !strcmp(name, "PyMem_GetAllocator")   ? (void *)get_table
	       : !strcmp(name, "PyMem_SetAllocator") ? (void *)set_table
	       : !strcmp(name, "PyObject_Malloc")    ? (void *)object_of
	       : !strcmp(name, "PyObject_Free")	     ? (void *)free_object
	       : !strcmp(name, "PyMem_RawMalloc")    ? (void *)raw_of
	       : !strcmp(name, "PyMem_RawFree")	     ? (void *)free_raw
						     : NULL;
}

/* Debug hooks: 16 bytes in front. */
static struct allocator below_debug[3];
static void *debug_malloc(void *c, size_t n)
{
	struct allocator *a = c;
	char *p = a->malloc(a->ctx, n + 16);
	memset(p, 0xfd, 16);
	return p + 16;
}
static void debug_free(void *c, void *p)
{
	struct allocator *a = c;
	if (((unsigned char *)p)[-1] != 0xfd)
		abort();
	a->free(a->ctx, (char *)p - 16);
}
static void debug_hooks(void)
{
	for (int d = RAW; d <= OBJ; d++) {
		below_debug[d] = tables[d];
		tables[d] = (struct allocator){&below_debug[d], debug_malloc, NULL, NULL, debug_free};
	}
}

/* The process starts: the interpreter's tables, and us. */
static void start(int mode, unsigned lg_sample)
{
	tables[RAW] = raw_table;
	tables[MEM] = tables[OBJ] = small_table;
	sets = 0;
	hw_config.python_objects = mode;
	hw_config.lg_sample = lg_sample;
	atomic_store(&on, false);
	atomic_store(&past, false);
	looked = false;
	rng = 0;
	left = 0;
	hw_objects_start();
}

/* ---------------------------------------------------------------- who is left alone */

static void others(void)
{
	start(HW_OBJECTS_OFF, 0);
	CHECK(sets == 0 && !strcmp(state, "off: HEAPWIRE_PYTHON_OBJECTS=off"), "off is off: %s", state);
	version = "", frames_state = "off: no Python";
	start(HW_OBJECTS_SAMPLED, 0);
	CHECK(sets == 0 && !strcmp(state, "off: no Python in this process"), "no Python: %s", state);
	version = "3.16.0", frames_state = "off: unknown";
	start(HW_OBJECTS_SAMPLED, 0);
	CHECK(sets == 0 && !strcmp(state, "off: no Python frames"), "an unknown one: %s", state);
	version = "3.14.0", on_trial = true;
	start(HW_OBJECTS_SAMPLED, 0);
	CHECK(sets == 0 && strstr(state, "mimalloc"), "a free-threaded one: %s", state);
	frames_state = "on", on_trial = false;

	hw_config.python_objects = HW_OBJECTS_SAMPLED;
	tables[RAW] = tables[MEM] = tables[OBJ] = raw_table;
	hw_objects_start();
	CHECK(sets == 0 && !strcmp(state, "off: objects are served by malloc"), "built without pymalloc: %s", state);
	tables[MEM] = tables[OBJ] = small_table;
	debug_hooks();
	hw_objects_start();
	CHECK(sets == 0 && strstr(state, "debug"), "a debug build: %s", state);
	tables[RAW] = raw_table, tables[MEM] = tables[OBJ] = small_table;
	tables[MEM].malloc = raw_malloc;
	hw_objects_start();
	CHECK(sets == 0 && strstr(state, "mimalloc"), "domains that differ: %s", state);

	start(HW_OBJECTS_MALLOC, 0);
	CHECK(tables[OBJ].malloc == raw_malloc && tables[MEM].free == raw_free && !strcmp(state, "malloc"), "everything from malloc: %s", state);
	hw_objects_check();
	CHECK(!strcmp(state, "malloc"), "and it stays: %s", state);
	start(HW_OBJECTS_MALLOC, 0);
	tables[OBJ] = small_table;
	hw_objects_check();
	CHECK(!strncmp(state, "off: PYTHONMALLOC", 17), "unless the user has chosen: %s", state);
}

/* ---------------------------------------------------------------- what the check finds */

static void keep(void *c, void *p)
{
	(void)c;
	(void)p;
}

/* Objects that are freed by pymalloc: every one comes back, and pymalloc's count of large blocks is what it would be. */
static void frees_past(void)
{
	uint64_t random = 4711;
	void *p[64] = {0};
	hw_objects_interval(6);
	left = 0;
	int ours = 0;
	for (int i = 0; i < 20000; i++) {
		unsigned k = next_random(&random) % 64;
		size_t n = next_random(&random) % 700 + 1;
		if (next_random(&random) % 3)
			p[k] = tables[OBJ].realloc(NULL, p[k], n);
		else {
			tables[MEM].free(NULL, p[k]);
			p[k] = tables[OBJ].malloc(NULL, n);
		}
		memset(p[k], 5, n);
		ours += hw_slots_have(p[k]);
	}
	long large = 0;
	for (int k = 0; k < 64; k++)
		large += p[k] && (hw_slots_have(p[k]) || !((struct head *)p[k] - 1)->pymalloc);
	CHECK(ours > 1000 && from_malloc == large, "%d are ours; %ld are counted as malloc's, want %ld", ours, from_malloc, large);
	for (int k = 0; k < 64; k++)
		tables[OBJ].free(NULL, p[k]);
	CHECK(!live && !from_malloc && !hw_slots_live(), "left: %ld blocks, %ld of malloc, %u slots", live, from_malloc, hw_slots_live());
}

static void checks(void)
{
	start(HW_OBJECTS_SAMPLED, 19);
	CHECK(sets == 2 && !strcmp(state, "on") && tables[OBJ].malloc == object_malloc && tables[MEM].realloc == object_realloc, "on: %s", state);
	hw_objects_check();
	CHECK(!strcmp(state, "on") && live == 0 && from_malloc == 0, "a check leaves nothing behind: %s, %ld and %ld blocks", state, live, from_malloc);
	CHECK(tables[OBJ].free == small_free && tables[MEM].free == small_free && tables[OBJ].malloc == object_malloc, "frees go past us");
	frees_past();

	start(HW_OBJECTS_SAMPLED, 0);
	void *before[3];
	for (int i = 0; i < 3; i++)
		before[i] = object_of(100);
	hw_objects_check();
	CHECK(from_malloc == 3, "what was sampled before the check is counted at it: %ld", from_malloc);
	for (int i = 0; i < 3; i++)
		free_object(before[i]);
	CHECK(from_malloc == 0 && !hw_slots_live(), "and counted off: %ld", from_malloc);

	start(HW_OBJECTS_SAMPLED, 19);
	tables[RAW].free = keep; /* an embedding program's own */
	hw_objects_check();
	CHECK(!strcmp(state, "on") && tables[OBJ].free == object_free && tables[MEM].free == object_free, "not where the raw domain is somebody's: %s", state);

	start(HW_OBJECTS_SAMPLED, 19);
	raw_elsewhere = true;
	hw_objects_check();
	CHECK(!strcmp(state, "on") && tables[OBJ].free == object_free, "nor where it is not our malloc: %s", state);
	raw_elsewhere = false;

	start(HW_OBJECTS_SAMPLED, 19);
	tables[OBJ] = tables[MEM] = small_table;
	hw_objects_check();
	CHECK(!strcmp(state, "on") && tables[OBJ].malloc == object_malloc && live == 0, "PYTHONMALLOC=pymalloc: back in our place: %s", state);

	start(HW_OBJECTS_SAMPLED, 19);
	tables[OBJ] = tables[MEM] = raw_table;
	hw_objects_check();
	CHECK(!strcmp(state, "off: objects are served by malloc") && tables[OBJ].malloc == raw_malloc, "PYTHONMALLOC=malloc: %s", state);

	start(HW_OBJECTS_SAMPLED, 19);
	tables[OBJ] = tables[MEM] = small_table;
	debug_hooks();
	hw_objects_check();
	CHECK(strstr(state, "debug") && tables[OBJ].malloc == debug_malloc && live == 0, "PYTHONMALLOC=debug: %s", state);

	start(HW_OBJECTS_SAMPLED, 19);
	debug_hooks();
	hw_objects_check();
	CHECK(!strcmp(state, "on") && live == 0, "hooks of somebody else on top of us: %s", state);
	left = 0;
	void *p = object_of(100);
	CHECK(hw_slots_have(p), "and they are served too");
	free_object(p);
	CHECK(!hw_slots_size(p), "and their blocks come back");

	start(HW_OBJECTS_SAMPLED, 19);
	tables[OBJ].free = keep; /* somebody who keeps what is freed */
	hw_objects_check();
	CHECK(strstr(state, "not told") && !atomic_load(&on), "frees that do not come back: %s", state);
	left = 0;
	p = object_of(100);
	CHECK(!hw_slots_have(p), "nothing is sampled any more");
	small_free(NULL, p);
}

/* ---------------------------------------------------------------- what is sampled */

static void dense(void)
{
	start(HW_OBJECTS_SAMPLED, 0);
	errno = 5;
	for (size_t n = 0; n <= 600; n++) {
		void *p = object_malloc(NULL, n), *q = object_calloc(NULL, n, 1);
		bool want = n >= 1 && n <= 512;
		if (hw_slots_have(p) != want || hw_slots_have(q) != want || (want && hw_slots_size(p) != (n + 15) / 16 * 16)) {
			CHECK(0, "%zu bytes: %d", n, hw_slots_have(p));
			return;
		}
		for (size_t i = 0; i < n; i++)
			if (((char *)q)[i]) {
				CHECK(0, "calloc of %zu: not zero at %zu", n, i);
				return;
			}
		memset(p, 0xaa, n);
		memset(q, 0xaa, n);
		object_free(NULL, q);
		object_free(NULL, p);
	}
	CHECK(errno == 5, "errno is kept");
	CHECK(!object_calloc(NULL, SIZE_MAX / 2, 3), "an overflow is pymalloc's to refuse");
	object_free(NULL, NULL);
	CHECK(live == 0, "all come back: %ld", live);
	void *p = object_realloc(NULL, NULL, 40);
	CHECK(hw_slots_have(p), "realloc of nothing is a malloc");
	no_memory = true;
	memset(p, 7, 40);
	void *q = object_realloc(NULL, p, 30);
	CHECK(q == p && hw_slots_size(p) == 32, "a block stays where it is when it is sampled again");
	CHECK(!object_realloc(NULL, p, 1000) && hw_slots_size(p) == 32, "without memory it stays as it was");
	hw_objects_interval(40);
	left = INT64_MAX;
	q = object_realloc(NULL, p, 200);
	CHECK(q == p && hw_slots_size(p) == 208 && ((char *)q)[29] == 7, "or as it is wanted, where there is room");
	no_memory = false;
	q = object_realloc(NULL, p, 200);
	CHECK(q != p && !hw_slots_have(q) && ((char *)q)[29] == 7 && !hw_slots_size(p), "not sampled again it goes to pymalloc");
	hw_objects_interval(0);
	left = 0;
	p = object_realloc(NULL, q, 100);
	CHECK(hw_slots_have(p) && ((char *)p)[29] == 7, "a block of pymalloc's may become sampled");
	q = object_realloc(NULL, p, 5000);
	CHECK(!hw_slots_have(q) && ((char *)q)[29] == 7, "a large one is malloc's");
	p = object_realloc(NULL, q, 100);
	CHECK(!hw_slots_have(p) && ((char *)p)[29] == 7, "and stays malloc's when it shrinks: jemalloc has decided about it");
	object_free(NULL, p);
	CHECK(live == 0, "all come back: %ld", live);
}

/* Random calls against what a block must hold. */
static void model(unsigned lg_sample, uint64_t random)
{
	enum { N = 500 };
	static unsigned char *block[N], mark[N];
	static size_t size[N];
	memset(block, 0, sizeof block);
	start(HW_OBJECTS_SAMPLED, lg_sample);
	int wrong = 0, ours = 0;
	for (int i = 0; i < 60000; i++) {
		int k = (int)(next_random(&random) % N);
		size_t n = next_random(&random) % 8 ? next_random(&random) % 520 : next_random(&random) % 2000;
		for (size_t b = 0; b < size[k]; b++)
			wrong += block[k][b] != mark[k];
		unsigned op = next_random(&random) % 4;
		if (block[k] && op) {
			size_t kept = n < size[k] ? n : size[k];
			block[k] = object_realloc(NULL, block[k], n);
			for (size_t b = 0; b < kept; b++)
				wrong += block[k][b] != mark[k];
		} else {
			if (block[k])
				object_free(NULL, block[k]);
			block[k] = op & 1 ? object_calloc(NULL, 1, n) : object_malloc(NULL, n);
		}
		ours += hw_slots_have(block[k]);
		wrong += hw_slots_have(block[k]) && hw_slots_size(block[k]) != hw_slots_round(n);
		size[k] = n;
		mark[k] = (unsigned char)next_random(&random);
		memset(block[k], mark[k], n);
	}
	CHECK(!wrong && ours, "interval 2^%u: %d bytes are wrong, %d blocks of 60000 sampled", lg_sample, wrong, ours);
	for (int k = 0; k < N; k++) {
		object_free(NULL, block[k]);
		size[k] = 0;
	}
	int taken = 0;
	for (uint32_t s = 0; s < HW_SLOTS; s++)
		taken += hw_slots_size((char *)hw_slots_base + s * HW_SLOT) != 0;
	CHECK(live == 0 && !taken, "interval 2^%u: %ld blocks and %d slots are left", lg_sample, live, taken);
}

/* How often a block that ends with n bytes is sampled, against 1 - exp(-n/interval): within five standard deviations, of draws
 * that are the same each time. */
static void odds(const char *what, unsigned lg_sample, size_t n, void *(*make)(size_t))
{
	enum { TIMES = 200000 };
	start(HW_OBJECTS_SAMPLED, lg_sample);
	rng = 12345;
	left = draw();
	double hits = 0;
	for (int i = 0; i < TIMES; i++) {
		void *p = make(n);
		hits += hw_slots_have(p);
		object_free(NULL, p);
	}
	double p = -expm1(-(double)hw_slots_round(n) / (double)(1 << lg_sample)), sigma = sqrt(p * (1 - p) * TIMES);
	CHECK(fabs(hits - p * TIMES) < 5 * sigma, "%s of %zu bytes, interval 2^%u: %.0f sampled, want %.0f with a deviation of %.0f", what, n,
	      lg_sample, hits, p * TIMES, sigma);
}

static void *by_malloc_call(size_t n) { return object_malloc(NULL, n); }
static void *by_calloc(size_t n) { return object_calloc(NULL, n, 1); }
static void *shrunk(size_t n) { return object_realloc(NULL, object_malloc(NULL, 512), n); }
static void *grown(size_t n) { return object_realloc(NULL, object_malloc(NULL, 16), n); }
static void *resized_often(size_t n)
{
	void *p = object_malloc(NULL, 100);
	for (size_t i = 1; i < 10; i++)
		p = object_realloc(NULL, p, i % 2 ? i * 50 : n);
	return object_realloc(NULL, p, n);
}
static void *same_size(size_t n) { return object_realloc(NULL, object_realloc(NULL, object_malloc(NULL, n), n), n); }
/* Others in between are no matter. */
static void *among_others(size_t n)
{
	object_free(NULL, object_malloc(NULL, 300));
	object_free(NULL, object_malloc(NULL, 30000));
	return object_malloc(NULL, n);
}

static void *another_thread(void *arg)
{
	*(void **)arg = object_malloc(NULL, 16);
	return NULL;
}

static void threads(void)
{
	/* A new thread's first request is no surer than others: of 2000 threads one in 64 samples it. */
	start(HW_OBJECTS_SAMPLED, 10);
	int hits = 0;
	for (int i = 0; i < 2000; i++) {
		pthread_t t;
		void *p;
		pthread_create(&t, NULL, another_thread, &p);
		pthread_join(t, NULL);
		hits += hw_slots_have(p);
		object_free(NULL, p);
	}
	CHECK(hits >= 1 && hits <= 75, "a thread's first request is sampled as others are: %d of 2000, want 31 give or take 6", hits);
	rng = 7;
	left = 100;
	hw_objects_forked();
	CHECK(rng != 7 && hw_slots_samples() == 0, "a child draws for itself");
}

int main(void)
{
	others();
	checks();
	dense();
	for (unsigned l = 0; l <= 12; l += 3)
		model(l, l + 1);
	odds("malloc", 12, 16, by_malloc_call);
	odds("malloc", 12, 100, by_malloc_call);
	odds("malloc", 9, 512, by_malloc_call);
	odds("calloc", 12, 250, by_calloc);
	odds("a block that was shrunk", 12, 64, shrunk);
	odds("a block that was shrunk", 8, 17, shrunk);
	odds("a block that has grown", 12, 500, grown);
	odds("a block that was resized often", 11, 200, resized_often);
	odds("a block that was resized to its own size", 10, 112, same_size);
	odds("malloc among others", 12, 48, among_others);
	threads();
	return checked("pyobjects");
}
