#ifndef HW_INPROC_H
#define HW_INPROC_H

#include "shim.h"

/* Constructor, while there is one thread: maps the exporter's library if the process is to export its own dumps. */
void hw_inproc_init(void);

/* Clock thread: has it been mapped and not been started yet? And: starts it; the process's folder is there. */
bool hw_inproc_due(void);
void hw_inproc_begin(void);

/* Leaving thread: has it deliver what is left, and waits for that, a second at most. */
void hw_inproc_end(void);

/* In the child of a fork: the exporter is the parent's. */
void hw_inproc_forked(void);

#endif
