/* Slots of sampled objects: taken, given back, written down, by many threads and over a fork. */
#define HW_SLOTS_BITS 9
#include "../../src/slots.c"

#include "check.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

struct hw_counters hw_count;

/* A stack whose every address is the thread's number of the moment. */
static __thread uint64_t here = 0x7f0000001000;
static __thread unsigned depth = 3;

unsigned hw_sample_capture(void **vec, unsigned max)
{
	errno = 99;
	for (unsigned i = 0; i < depth && i < max; i++)
		vec[i] = (void *)here;
	return depth < max ? depth : max;
}

static int used_addresses;

static void use(uint64_t a)
{
	(void)a;
	used_addresses++;
}

static char text[1 << 20];

static const char *section(void)
{
	static char buf[4096];
	int fd = memfd_create("section", 0);
	struct hw_out o;
	used_addresses = 0;
	hw_out_begin(&o, fd, buf, sizeof buf);
	hw_slots_write(&o, use);
	if (hw_out_end(&o))
		abort();
	ssize_t n = pread(fd, text, sizeof text - 1, 0);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return text;
}

/* ---------------------------------------------------------------- many threads
 *
 * A block's stack and size say the same number, so that a record that was read while it changed shows. */

#define THREADS 4
#define ROUNDS 20000
#define HELD 40

static uint64_t stack_of(size_t size)
{
	return 0x7f0000000000 + size;
}

static _Atomic bool over;
static _Atomic int trespasses;

static void *storm(void *arg)
{
	uint64_t random = (uintptr_t)arg + 1;
	struct {
		unsigned char *p;
		size_t size;
		unsigned char mark;
	} held[HELD] = {0};
	for (int i = 0; i < ROUNDS; i++) {
		unsigned k = next_random(&random) % HELD;
		size_t size = 16 + 16 * (next_random(&random) % 32);
		if (held[k].p) {
			for (size_t b = 0; b < held[k].size; b++)
				if (held[k].p[b] != held[k].mark)
					atomic_fetch_add(&trespasses, 1);
			if (hw_slots_size(held[k].p) != held[k].size)
				atomic_fetch_add(&trespasses, 1);
		}
		here = stack_of(size);
		depth = 1 + (unsigned)(size / 16);
		if (held[k].p && next_random(&random) % 3 == 0) {
			hw_slots_again(held[k].p, size, 19);
		} else {
			if (held[k].p)
				hw_slots_release(held[k].p);
			held[k].p = hw_slots_take(size, 19);
		}
		held[k].size = size;
		held[k].mark = (unsigned char)next_random(&random);
		if (held[k].p)
			memset(held[k].p, held[k].mark, size);
	}
	for (int k = 0; k < HELD; k++)
		if (held[k].p)
			hw_slots_release(held[k].p);
	return NULL;
}

/* Number of records in the section whose stack and size do not belong together. */
static int torn(const char *s)
{
	int bad = 0;
	for (const char *p = s; (p = strstr(p, "@ 0x")); p++) {
		uint64_t first = strtoull(p + 2, NULL, 16);
		unsigned frames = 0;
		const char *end = strchr(p, '\n');
		for (const char *q = p; (q = strstr(q, " 0x")) && q < end; q++, frames++)
			bad += strtoull(q + 1, NULL, 16) != first;
		unsigned long objects, bytes;
		if (sscanf(end, "\n  t*: %lu: %lu [0: 0]", &objects, &bytes) != 2)
			return bad + 1;
		bad += stack_of(bytes / objects) != first || frames != 1 + bytes / objects / 16;
	}
	return bad;
}

static void *watch(void *arg)
{
	int *bad = arg;
	do {
		*bad += torn(section());
		sched_yield();
	} while (!atomic_load(&over));
	return NULL;
}

int main(void)
{
	int local;
	CHECK(!hw_slots_have(NULL) && !hw_slots_have(&local) && !hw_slots_have((void *)-1), "before there are slots nothing is one");
	CHECK(*section() == 0, "and there is no section");
	CHECK(hw_slots_init(), "the memory can be mapped");
	CHECK(!hw_slots_have(NULL) && !hw_slots_have(&local) && !hw_slots_have((char *)hw_slots_base - 1) &&
		      hw_slots_have((void *)hw_slots_base) && hw_slots_have((char *)hw_slots_base + HW_SLOTS_BYTES - 1) &&
		      !hw_slots_have((char *)hw_slots_base + HW_SLOTS_BYTES),
	      "slots are told by their address");

	errno = 5;
	char *a = hw_slots_take(48, 19), *b = hw_slots_take(512, 19);
	CHECK(a && b && a != b && !((uintptr_t)a & 15) && (a > b ? a - b : b - a) >= HW_SLOT, "blocks are aligned and apart");
	CHECK(errno == 5, "errno is kept");
	CHECK(hw_slots_size(a) == 48 && hw_slots_size(b) == 512, "sizes are known");
	CHECK(hw_slots_samples() == 2 && HW_GET(samples) == 2, "samples are counted");
	CHECK(!strcmp(section(), "HEAPWIRE_OBJECTS: 1\nheap_v2/524288\n"
				 "@ 0x7f0000001000 0x7f0000001000 0x7f0000001000\n  t*: 1: 512 [0: 0]\n"
				 "@ 0x7f0000001000 0x7f0000001000 0x7f0000001000\n  t*: 1: 48 [0: 0]\n\n") ||
		      !strcmp(text, "HEAPWIRE_OBJECTS: 1\nheap_v2/524288\n"
				    "@ 0x7f0000001000 0x7f0000001000 0x7f0000001000\n  t*: 1: 48 [0: 0]\n"
				    "@ 0x7f0000001000 0x7f0000001000 0x7f0000001000\n  t*: 1: 512 [0: 0]\n\n"),
	      "one stack has a record for each size: %s", text);
	CHECK(used_addresses == 6, "every address is offered");
	char *c = hw_slots_take(48, 19);
	hw_slots_again(b, 48, 19);
	CHECK(strstr(section(), "  t*: 3: 144 [0: 0]\n\n") && used_addresses == 3, "equal ones are one record, a block may change its size: %s", text);
	hw_slots_again(b, 48, 14);
	section();
	CHECK(strstr(text, "heap_v2/16384\n@") && strstr(text, "heap_v2/524288\n@") && strstr(text, "t*: 2: 96 [") && strstr(text, "t*: 1: 48 ["),
	      "each interval has its own part: %s", text);
	hw_slots_again(b, 48, 19);

	hw_slots_release(c);
	hw_slots_release(c);
	CHECK(hw_slots_size(c) == 0, "a block that is free has no size");
	char *d = hw_slots_take(16, 19), *e = hw_slots_take(16, 19);
	CHECK(d == c && e != c, "what was freed is used again, and once though it was freed twice");
	depth = 0;
	hw_slots_again(d, 32, 19);
	CHECK(strstr(section(), "@\n  t*: 1: 32 [0: 0]\n"), "no stack is a record too: %s", text);
	depth = DEPTH + 5;
	hw_slots_again(d, 32, 19);
	section();
	CHECK(used_addresses == DEPTH + 2 * 3, "deep stacks are held: %d addresses", used_addresses);
	depth = 3;

	/* A fork: the books are empty, the blocks are there. */
	hw_slots_forked();
	CHECK(*section() == 0 && hw_slots_samples() == 0, "a child starts with empty books: %s", text);
	CHECK(hw_slots_size(a) == 48 && hw_slots_size(d) == 32, "and with its parent's blocks");
	hw_slots_release(a);
	hw_slots_again(b, 64, 19);
	char *f = hw_slots_take(80, 19);
	section();
	CHECK(f == a && strstr(text, "1: 64 [") && strstr(text, "1: 80 [") && !strstr(text, "1: 16 ["),
	      "which can be freed, resized and used again: %s", text);
	hw_slots_release(b);
	hw_slots_release(d);
	hw_slots_release(e);
	hw_slots_release(f);
	CHECK(!strchr(section(), '@'), "nothing is left: %s", text);

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	a = hw_slots_take(48, 19), b = hw_slots_take(48, 19), c = hw_slots_take(32, 4);
	struct rlimit old, none;
	getrlimit(RLIMIT_AS, &old);
	none = (struct rlimit){1 << 20, old.rlim_max};
	setrlimit(RLIMIT_AS, &none);
	int used = (section(), used_addresses);
	setrlimit(RLIMIT_AS, &old);
	const char *first = strstr(text, "t*: 1: 48 [");
	CHECK(used == 9 && first && strstr(first + 1, "t*: 1: 48 [") && strstr(text, "heap_v2/16\n@") && text[strlen(text) - 2] == '\n',
	      "without memory they are told one by one: %s", text);
	hw_slots_release(a), hw_slots_release(b), hw_slots_release(c);
#endif

	static void *all[HW_SLOTS];
	int got = 0, twice = 0;
	for (unsigned i = 0; i < HW_SLOTS; i++)
		got += (all[i] = hw_slots_take(16, 19)) != NULL;
	CHECK(got == HW_SLOTS, "every slot can be taken: %d", got);
	for (unsigned i = 0; i < HW_SLOTS; i++)
		for (unsigned k = 0; k < i; k++)
			twice += all[i] == all[k];
	CHECK(!twice, "and none twice");
	CHECK(!hw_slots_take(16, 19) && !hw_slots_take(16, 19) && hw_slots_lost() == 2, "then there is none, and that is counted");
	hw_slots_release(all[7]);
	CHECK(hw_slots_take(16, 19) == all[7] && hw_slots_lost() == 2, "until one is free again");
	for (unsigned i = 0; i < HW_SLOTS; i++)
		hw_slots_release(all[i]);

	pthread_t t[THREADS], reader;
	int bad = 0;
	pthread_create(&reader, NULL, watch, &bad);
	for (uintptr_t i = 0; i < THREADS; i++)
		pthread_create(&t[i], NULL, storm, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	atomic_store(&over, true);
	pthread_join(reader, NULL);
	CHECK(!atomic_load(&trespasses), "no two threads have one slot: %d times", trespasses);
	CHECK(!bad, "no record is read while it changes: %d times", bad);
	CHECK(!strchr(section(), '@'), "nothing is left: %s", text);
	return checked("slots");
}
