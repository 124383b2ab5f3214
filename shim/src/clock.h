#ifndef HW_CLOCK_H
#define HW_CLOCK_H

#include "shim.h"

/* Starts the clock thread; once, when the process is known to be a target. */
void hw_clock_start(void);

/* Asks the clock thread for a dump and waits for it, at most timeout_ms. False if it did not come to pass. Lock-free:
 * callable from anywhere outside the sampling hook. */
bool hw_clock_request_exit_dump(unsigned timeout_ms);

/* Ends the thread and waits until the kernel counts it no more; starts it again where it left off. */
void hw_clock_pause(void);
void hw_clock_resume(void);

/* In the child of a fork: the parent's thread is not here; starts one of our own. */
void hw_clock_forked(void);

#endif
