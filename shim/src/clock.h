#ifndef HW_CLOCK_H
#define HW_CLOCK_H

#include "shim.h"

/* Starts the clock thread; once, when the process is known to be a target. */
void hw_clock_start(void);

/* Is this process profiled? */
bool hw_clock_started(void);

/* Asks the clock thread for a dump, the last one if `leaving`, and waits for it: at most timeout_ms, and at most allocator_ms
 * for jemalloc's part of it. 0, or the errno of what went wrong. Lock-free: callable from anywhere outside the sampling hook. */
int hw_clock_request(bool leaving, unsigned timeout_ms, unsigned allocator_ms);

/* Before hw_clock_request: what the next dump that somebody asks for says set it off. Any thread. */
void hw_clock_why(const char *why);

/* Has the thread look at once. Callable from a signal handler and from inside malloc. */
void hw_clock_wake(void);

/* Ends the thread and waits until the kernel counts it no more; starts it again where it left off. False, and it goes on, if it does not
 * end within `patience` nanoseconds: it may be writing to a disk that hangs. */
#define HW_CLOCK_PATIENCE 1000000000ull
bool hw_clock_pause(uint64_t patience);
void hw_clock_resume(void);

/* The process's first thread ends, and others go on: from now on the thread holds the process's table of descriptors, since it may be
 * the one that ends the process (clock.c), and what is then still in the buffers of stdio goes out through it. */
void hw_clock_stay(void);

/* In the child of a fork: the parent's thread is not here; starts one of our own. */
void hw_clock_forked(void);

#endif
