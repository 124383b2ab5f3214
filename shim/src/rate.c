/* rate.c: a sampling interval that fits what the program allocates.
 *
 * jemalloc can change the interval only by forgetting every sample (prof.reset): the weight of a live sample is that of the
 * interval it was taken with, and its books have one interval. So the interval is looked for in the first half minute of a
 * process, while little lives, and stays for the rest of its life: a change later would take the stacks from all that is live,
 * and a leak would look like a loss. What a change forgets is in the dump that is taken before it, and in every dump after it
 * as a figure.
 *
 * A thread's distance to its next sample was drawn for the old interval and stays so: its first sample after a change comes
 * too early, or too late, by less than one interval of bytes.
 */
#include "rate.h"

#include "alloc.h"
#include "config.h"
#include "pyobjects.h"

#include <time.h>

/* Samples a second. One costs some microseconds: a thousand are less than a hundredth of a core. */
#define FEWEST 20u
#define MOST 1000u
#define WANTED 200u

#define LG_FINEST 17u
#define LG_COARSEST 23u

static uint64_t last_at, last_samples;
static unsigned wait_s; /* 0: the search is over */
static unsigned changes;
static uint64_t forgotten_bytes, forgotten_objects;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static void look_again(void)
{
	last_at = now_ns();
	last_samples = HW_GET(samples);
}

void hw_rate_begin(void)
{
	wait_s = hw_config.sample_auto ? 2 : 0;
	changes = 0;
	look_again();
}

/* Where the rate is out of the band, the power of two that brings it nearest to the wanted one. */
static unsigned fitting(unsigned lg, double rate)
{
	if (rate >= FEWEST && rate <= MOST)
		return lg;
	while (rate > WANTED * 1.5 && lg < LG_COARSEST) {
		rate /= 2;
		lg++;
	}
	while (rate < WANTED / 1.5 && lg > LG_FINEST) {
		rate *= 2;
		lg--;
	}
	return lg;
}

unsigned hw_rate_look(void)
{
	uint64_t now = now_ns();
	if (!wait_s || now - last_at < wait_s * 1000000000ull)
		return 0;
	double rate = (double)(HW_GET(samples) - last_samples) * 1e9 / (double)(now - last_at);
	unsigned lg = 63u - (unsigned)__builtin_clzll(hw_alloc_sample_bytes()), better = fitting(lg, rate);
	wait_s = wait_s < 16 ? wait_s * 2 : 0; /* 2, 6, 14 and 30 s after the start */
	look_again();
	return better != lg ? better : 0;
}

void hw_rate_change(unsigned lg)
{
	if (!hw_alloc_resample(lg, &forgotten_bytes, &forgotten_objects))
		return;
	hw_objects_interval(lg);
	changes++;
	look_again();
}

unsigned hw_rate_changes(uint64_t *bytes, uint64_t *objects)
{
	*bytes = forgotten_bytes;
	*objects = forgotten_objects;
	return changes;
}
