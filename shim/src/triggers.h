#ifndef HW_TRIGGERS_H
#define HW_TRIGGERS_H

#include "shim.h"

/* Clock thread, each second: what makes a dump due now? The reason for the file's name, with the why of it in words, or NULL. */
const char *hw_triggers_look(char *why, size_t cap);

/* Clock thread: a dump was taken, of whatever reason. */
void hw_triggers_dumped(void);

/* Installs the handler of HEAPWIRE_SIGNAL, if one is asked for; in the constructor. */
void hw_triggers_signal_init(void);

/* Clock thread: has the signal come since the last call? */
bool hw_triggers_signalled(void);

/* In the child of a fork: measured from here. */
void hw_triggers_forked(void);

/* Figures of the process's memory control group, v2 or v1; *max 0: no limit. False where there is none to be read. */
bool hw_cgroup_figures(uint64_t *current, uint64_t *max);

#endif
