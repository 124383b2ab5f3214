#ifndef HW_FORK_H
#define HW_FORK_H

#include "shim.h"

/* Registers the handlers; after jemalloc's own, which its first malloc registers. */
void hw_fork_init(void);

#endif
