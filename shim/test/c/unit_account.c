/* What memory is whose. */
#include "../../src/account.c"

#include "check.h"

#include <pthread.h>
#include <sys/mman.h>

void *hw_owned_map(void *at, size_t size, int prot, int flags, int fd, off_t offset);
int hw_owned_unmap(void *at, size_t size);

#define MIB (1ul << 20)

static char *anonymous(void)
{
	return mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

static char *shared(void)
{
	return mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static char *allocators(void)
{
	return hw_owned_map(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

/* No deferral to the first pass's cost. */
static struct hw_account look(void)
{
	struct hw_account a;
	last_at = 0;
	CHECK(hw_account(&a), "the pass is made");
	uint64_t sum = 0;
	for (int i = 0; i < HW_PARTS; i++)
		sum += a.part[i];
	CHECK(sum == a.counted, "the parts add up");
	return a;
}

static uint64_t grown(const struct hw_account *from, const struct hw_account *to, enum hw_part part)
{
	return to->part[part] - from->part[part];
}

static pthread_barrier_t both;

static void *deep(void *arg)
{
	(void)arg;
	volatile char frame[1 << 20];
	for (size_t i = 0; i < sizeof frame; i += PAGE)
		frame[i] = 1;
	pthread_barrier_wait(&both);
	pthread_barrier_wait(&both);
	return NULL;
}

static void kinds_of_memory(void)
{
	static const struct {
		const char *what;
		char *(*make)(void);
		enum hw_part part;
	} kinds[] = {{"anonymous", anonymous, HW_PART_OTHER}, {"shared", shared, HW_PART_SHARED}, {"allocator", allocators, HW_PART_ALLOCATOR}};
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		char *p = kinds[k].make();
		struct hw_account before = look();
		memset(p, 1, 3 * MIB); /* of 8: what is not touched does not count */
		struct hw_account after = look();
		uint64_t by = grown(&before, &after, kinds[k].part);
		CHECK(by >= 3 * MIB && by < 3 * MIB + 64 * PAGE, "%s memory is where it belongs, %llu more bytes", kinds[k].what,
		      (unsigned long long)by);
	}

}

int main(void)
{
	kinds_of_memory();
	scans = false; /* what kernels before 6.7 have */
	kinds_of_memory();

	/* A hole in the allocator's mapping that somebody else fills. */
	char *p = allocators();
	struct hw_account before = look();
	hw_owned_unmap(p + 2 * MIB, 2 * MIB);
	char *q = mmap(p + 2 * MIB, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	memset(p, 1, 8 * MIB);
	struct hw_account after = look();
	CHECK(q == p + 2 * MIB && grown(&before, &after, HW_PART_ALLOCATOR) == 6 * MIB && grown(&before, &after, HW_PART_OTHER) >= 2 * MIB,
	      "what was unmapped is no longer the allocator's");

	pthread_t t;
	pthread_barrier_init(&both, NULL, 2);
	before = look();
	if (pthread_create(&t, NULL, deep, NULL))
		abort();
	pthread_barrier_wait(&both);
	after = look();
	CHECK(after.stacks == before.stacks + 1 && grown(&before, &after, HW_PART_STACKS) >= MIB, "a thread's stack is found, %llu stacks",
	      (unsigned long long)after.stacks);
	pthread_barrier_wait(&both);
	pthread_join(t, NULL);

	/* A terabyte that is mapped and not used costs no time where the kernel skips it, and a pass that takes too long ends. */
	scans = true;
	char *huge = mmap(NULL, MIB * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	last_at = 0;
	if (huge != MAP_FAILED && hw_account(&(struct hw_account){0}) && !scans)
		CHECK(now() - began < 2 * MOST_NS, "the pass ends");
	munmap(huge, MIB * MIB);

	struct hw_range r[] = {{50, 70, HW_OWNER_STACK}, {10, 20, HW_OWNER_ALLOCATOR}, {20, 30, HW_OWNER_ALLOCATOR}, {60, 80, HW_OWNER_ARENA}, {65, 66, HW_OWNER_STACK}, {90, 90, HW_OWNER_ARENA}};
	CHECK(hw_owned_sort(r, 6) == 3 && r[0].start == 10 && r[0].end == 30 && r[1].end == 70 && r[2].start == 70 && r[2].end == 80 && r[2].owner == HW_OWNER_ARENA,
	      "ranges are sorted, joined and do not overlap");

	last_at = now();
	last_cost = 1ull << 50;
	struct hw_account a;
	CHECK(!hw_account(&a), "a pass that would cost too much is left out");
	return checked("account");
}
