#ifndef HW_EXIT_H
#define HW_EXIT_H

#include "shim.h"

/* Turns the exit dump on; in the constructor, once the process is a target. */
void hw_exit_init(void);

/* Clock thread: has the interpreter been given its exit callback (or is there none to give)? Try to. */
bool hw_exit_armed(void);
void hw_exit_arm(void);

/* Has the interpreter call fn in its main thread, soon, between two bytecodes. False if there is none to ask. Callable from
 * any thread, GIL held or not. */
bool hw_exit_call_soon(void (*fn)(void));

/* Clock thread: the process is about to end in it: takes the exit dump that is due. */
void hw_exit_last_thread(void);

/* In the child of a fork: an exit dump of its own is due. */
void hw_exit_forked(void);

#endif
