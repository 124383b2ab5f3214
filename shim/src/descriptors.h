#ifndef HW_DESCRIPTORS_H
#define HW_DESCRIPTORS_H

#include "shim.h"

/* This thread leaves the process's table of descriptors for an empty one, in which 0 to 2 lead nowhere. False where the kernel, or a
 * filter of system calls, does not let it: it stays in the process's then. */
bool hw_descriptors_leave(void);

/* Is this thread in a table that is not the process's? A thread is where the one that made it was: it is told. */
bool hw_descriptors_left(void);
void hw_descriptors_say_left(bool left);

/* Any thread: writes a line to the process's standard error. What can't be written from here is kept, and written by the next that
 * can: hw_descriptors_flush, in a thread of the program's. */
void hw_descriptors_write(const char *line, size_t n);
void hw_descriptors_flush(void);

/* In the child of a fork: what was kept is the parent's. */
void hw_descriptors_forked(void);

#endif
