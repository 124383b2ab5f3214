#ifndef HW_SAMPLE_H
#define HW_SAMPLE_H

#include "shim.h"

/* Maps the scratch memory; once, before the hook is installed. */
bool hw_sample_init(void);

/* jemalloc's experimental.hooks.prof_backtrace (field: jemalloc 5.3.0, prof_externs.h): fills vec, leaf first, with at most
 * max entries. Runs inside malloc. */
void hw_sample_hook(void **vec, unsigned *len, unsigned max);

/* The stack of the calling thread, as the hook takes it; 0 entries where it can't be had. The hook's laws hold. */
unsigned hw_sample_capture(void **vec, unsigned max);

/* In the child of a fork: scratch that other threads held is free again. */
void hw_sample_forked(void);

#endif
