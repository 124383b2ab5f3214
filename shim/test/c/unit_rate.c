/* The interval that fits. */
#include "../../src/rate.c"

#include "check.h"

struct hw_config hw_config;
struct hw_counters hw_count;
static unsigned lg_now = 19;

uint64_t hw_alloc_sample_bytes(void) { return 1ull << lg_now; }
static unsigned objects_lg;

void hw_objects_interval(unsigned lg)
{
	objects_lg = lg;
}

bool hw_alloc_resample(unsigned lg, uint64_t *bytes, uint64_t *objects)
{
	lg_now = lg;
	*bytes = 1000;
	*objects = 10;
	return true;
}

int main(void)
{
	static const struct {
		double rate;
		unsigned from, to;
	} rates[] = {{200, 19, 19}, {20, 19, 19}, {1000, 19, 19}, {1001, 19, 21}, {8000, 19, 23}, {1e9, 19, 23}, {19, 19, 17}, {0, 19, 17}, {5000, 17, 22}, {10, 22, 18}};
	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
		CHECK(fitting(rates[i].from, rates[i].rate) == rates[i].to, "%g samples a second at 2^%u: 2^%u, not 2^%u", rates[i].rate,
		      rates[i].from, fitting(rates[i].from, rates[i].rate), rates[i].to);

	hw_rate_begin();
	last_at -= 3600ull * 1000000000;
	CHECK(!hw_rate_look(), "nobody asked");

	hw_config.sample_auto = true;
	hw_rate_begin();
	CHECK(!hw_rate_look(), "not at once");
	unsigned looks = 0;
	uint64_t bytes, objects;
	for (int i = 0; i < 10; i++) {
		last_at -= 40ull * 1000000000;
		atomic_fetch_add(&hw_count.samples, 4000000); /* a hundred thousand a second, whatever the interval */
		unsigned lg = hw_rate_look();
		if (lg) {
			looks++;
			hw_rate_change(lg);
		}
	}
	CHECK(looks == 1 && lg_now == LG_COARSEST, "once to the end of the range, 2^%u after %u", lg_now, looks);
	CHECK(hw_rate_changes(&bytes, &objects) == 1 && bytes == 1000 && objects == 10, "what was forgotten is known");
	CHECK(!wait_s, "the search is over");
	hw_rate_begin();
	CHECK(wait_s && !hw_rate_changes(&bytes, &objects), "a child searches anew");
	CHECK(objects_lg == lg_now, "small objects follow: 2^%u", objects_lg);
	return checked("rate");
}
