/* giant.c: a single huge request, noted with size, thread and stack before it is served.
 *
 * hw_giant_note runs in the caller of malloc, ahead of jemalloc, on any thread, with any lock of the program held: the laws of
 * the sampling hook hold. What it costs is paid by requests of that size alone, which are about to cost a great deal more.
 *
 * Notes lie in a few slots: taken by a compare-and-swap, filled, published; the clock thread writes them into the next dump,
 * which they set off, and frees the slots. With all slots taken a note is lost and counted.
 */
#include "giant.h"

#include "clock.h"
#include "intern.h"
#include "sample.h"

#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 16
#define DEPTH 96

enum { FREE, FILLING, READY, WRITTEN };

struct note {
	_Atomic int state;
	int tid;
	uint64_t time_unix_nano, bytes;
	const char *call;
	char thread[17];
	unsigned len;
	void *stack[DEPTH];
};

size_t hw_giant_bytes = SIZE_MAX;

static struct note notes[SLOTS];
static _Atomic uint64_t count, lost;

void hw_giant_note(size_t bytes, const char *call)
{
	int keep = errno;
	atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
	struct note *n = NULL;
	for (int i = 0; i < SLOTS && !n; i++) {
		int want = FREE;
		if (atomic_compare_exchange_strong(&notes[i].state, &want, FILLING))
			n = &notes[i];
	}
	if (!n) {
		atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
		errno = keep;
		return;
	}
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	n->time_unix_nano = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
	n->tid = (int)syscall(SYS_gettid);
	n->bytes = bytes;
	n->call = call;
	n->thread[16] = 0;
	if (prctl(PR_GET_NAME, n->thread))
		n->thread[0] = 0;
	n->len = hw_sample_capture(n->stack, DEPTH);
	atomic_store(&n->state, READY);
	hw_clock_wake();
	errno = keep;
}

bool hw_giant_pending(uint64_t *largest)
{
	*largest = 0;
	for (int i = 0; i < SLOTS; i++)
		if (atomic_load(&notes[i].state) == READY && notes[i].bytes > *largest)
			*largest = notes[i].bytes;
	return *largest > 0;
}

void hw_giant_write(struct hw_out *o, void (*used)(uint64_t address))
{
	bool open = false;
	for (int i = 0; i < SLOTS; i++) {
		struct note *n = &notes[i];
		if (atomic_load(&n->state) != READY)
			continue;
		if (!open)
			hw_out_str(o, "HEAPWIRE_GIANT: 1\n");
		open = true;
		hw_out_dec(o, n->time_unix_nano);
		hw_out_char(o, '\t');
		hw_out_dec(o, (uint64_t)n->tid);
		hw_out_char(o, '\t');
		hw_out_dec(o, n->bytes);
		hw_out_char(o, '\t');
		hw_out_str(o, n->call);
		hw_out_char(o, '\t');
		hw_out_escaped(o, n->thread, strlen(n->thread));
		hw_out_char(o, '\t');
		for (unsigned k = 0; k < n->len; k++) {
			if (k)
				hw_out_char(o, ' ');
			hw_out_str(o, "0x");
			hw_out_hex(o, (uint64_t)n->stack[k]);
			used((uint64_t)n->stack[k]);
		}
		hw_out_char(o, '\n');
		atomic_store(&n->state, WRITTEN);
	}
	if (open)
		hw_out_char(o, '\n');
}

void hw_giant_told(bool arrived)
{
	for (int i = 0; i < SLOTS; i++) {
		int want = WRITTEN;
		atomic_compare_exchange_strong(&notes[i].state, &want, arrived ? FREE : READY);
	}
}

uint64_t hw_giant_count(void)
{
	return atomic_load_explicit(&count, memory_order_relaxed);
}

uint64_t hw_giant_lost(void)
{
	return atomic_load_explicit(&lost, memory_order_relaxed);
}

void hw_giant_forked(void)
{
	for (int i = 0; i < SLOTS; i++)
		atomic_store(&notes[i].state, FREE);
	atomic_store(&count, 0);
	atomic_store(&lost, 0);
}
