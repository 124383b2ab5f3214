/* Notes of giant requests: slots, their end, what is written. */
#include "../../src/giant.c"

#include "check.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

static int woken;

void hw_clock_wake(void)
{
	__atomic_add_fetch(&woken, 1, __ATOMIC_RELAXED);
}

unsigned hw_sample_capture(void **vec, unsigned max)
{
	vec[0] = (void *)0x7f0000001234;
	vec[1] = (void *)(HW_TAG | 3ull << HW_LINE_BITS | 41);
	return max < 2 ? 0 : 2;
}

static uint64_t addresses[64];
static int naddresses;

static void use(uint64_t a)
{
	if (naddresses < 64)
		addresses[naddresses++] = a;
}

static void *many(void *arg)
{
	(void)arg;
	for (int i = 0; i < 1000; i++)
		hw_giant_note(1ull << 40, "malloc");
	return NULL;
}

int main(void)
{
	uint64_t largest;
	CHECK(!hw_giant_pending(&largest) && hw_giant_bytes == SIZE_MAX, "at start nothing is pending, and nothing is giant");
	errno = 77;
	prctl(PR_SET_NAME, "lis\tener");
	hw_giant_note(962174058496ull, "calloc");
	hw_giant_note(5ull << 30, "malloc");
	CHECK(errno == 77 && woken == 2, "errno is kept and the clock is woken");
	CHECK(hw_giant_pending(&largest) && largest == 962174058496ull, "the largest is told");
	char buf[64], got[1024] = "", want[256];
	int fd = memfd_create("out", 0);
	struct hw_out o;
	hw_out_begin(&o, fd, buf, sizeof buf);
	hw_giant_write(&o, use);
	CHECK(hw_out_end(&o) == 0 && pread(fd, got, sizeof got - 1, 0) > 0, "the section can be written");
	snprintf(want, sizeof want, "%d\t962174058496\tcalloc\tlis\\tener\t0x7f0000001234 0x5079000000c00029\n", (int)syscall(SYS_gettid));
	CHECK(!strncmp(got, "HEAPWIRE_GIANT: 1\n", 18) && strstr(got, want) && !strcmp(got + strlen(got) - 2, "\n\n"),
	      "a row has time, thread, size, call, name and stack: %s", got);
	CHECK(naddresses == 4 && addresses[1] == (HW_TAG | 3ull << HW_LINE_BITS | 41), "every address is offered");
	CHECK(!hw_giant_pending(&largest) && hw_giant_count() == 2 && hw_giant_lost() == 0, "what was written is not pending");
	hw_giant_told(false);
	CHECK(hw_giant_pending(&largest), "unless its dump did not arrive");
	hw_giant_write(&o, use);
	hw_giant_told(true);
	CHECK(!hw_giant_pending(&largest), "then the next one tells of it");
	close(fd);
	fd = memfd_create("out", 0);
	hw_out_begin(&o, fd, buf, sizeof buf);
	hw_giant_write(&o, use);
	CHECK(hw_out_end(&o) == 0 && pread(fd, got, 1, 0) == 0, "without notes there is no section");
	close(fd);

	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, many, NULL);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	CHECK(hw_giant_count() == 4002 && hw_giant_lost() == 4000 - SLOTS, "what finds no room is counted: %llu",
	      (unsigned long long)hw_giant_lost());
	hw_giant_forked();
	CHECK(!hw_giant_pending(&largest) && hw_giant_count() == 0, "a child starts with none");
	return checked("giant");
}
