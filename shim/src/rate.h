#ifndef HW_RATE_H
#define HW_RATE_H

#include "shim.h"

/* HEAPWIRE_SAMPLE_BYTES=auto. Clock thread only. */

/* At start, and in the child of a fork. */
void hw_rate_begin(void);

/* Once a second: does another interval fit better? Then its logarithm, otherwise 0. */
unsigned hw_rate_look(void);

/* Goes over to it. */
void hw_rate_change(unsigned lg);

/* How often that was, and what was live at the last time, which the samples leave out. */
unsigned hw_rate_changes(uint64_t *bytes, uint64_t *objects);

#endif
