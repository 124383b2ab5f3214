#ifndef HW_ALLOC_H
#define HW_ALLOC_H

#include "shim.h"

/* Is this library's malloc the program's, and does its jemalloc profile? NULL, or the reason against it in words. */
const char *hw_alloc_check(void);

/* In every process: settings that jemalloc takes at run time only. */
void hw_alloc_tune(void);

/* Sets the sampling interval, installs the hook and turns sampling on. NULL, or the reason in words. */
const char *hw_alloc_start(void);

/* The calling thread's own allocations are no samples (the clock thread). */
void hw_alloc_hide_thread(void);

/* Writes jemalloc's dump to an existing file. 0 or errno. */
int hw_alloc_dump(const char *path);

/* In the child of a fork: forget inherited samples. Returns what was live, in bytes and objects. */
void hw_alloc_forget(uint64_t *bytes, uint64_t *objects);

/* Forgets all samples and goes on with another interval. What was live then, as above; false: nothing has changed. */
bool hw_alloc_resample(unsigned lg_sample, uint64_t *bytes, uint64_t *objects);

struct hw_alloc_stats {
	uint64_t allocated, active, metadata, resident, mapped, retained;
};
bool hw_alloc_stats(struct hw_alloc_stats *s);

/* Bytes that malloc has given to this thread so far. Takes no lock. */
uint64_t hw_alloc_thread_allocated(void);

uint64_t hw_alloc_sample_bytes(void);
bool hw_alloc_accum(void);
bool hw_alloc_unbiased(void);
const char *hw_alloc_version(void);

#endif
