#ifndef HW_FORK_H
#define HW_FORK_H

#include "shim.h"

/* Registers the handlers; after jemalloc's own, which its first malloc registers. */
void hw_fork_init(void);

/* Held by the clock thread around whatever leaves a lock of the C library behind if a fork falls into it. A fork waits for
 * it. */
void hw_fork_hold_off(void);
void hw_fork_allow(void);

#endif
