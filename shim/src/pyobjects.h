#ifndef HW_PYOBJECTS_H
#define HW_PYOBJECTS_H

#include "shim.h"

enum hw_objects { HW_OBJECTS_SAMPLED, HW_OBJECTS_MALLOC, HW_OBJECTS_OFF };

/* Takes the place that HEAPWIRE_PYTHON_OBJECTS says in front of the interpreter's object allocator. In the constructor, when
 * sampling is on. */
void hw_objects_start(void);

/* In the interpreter's main thread, with the GIL: do requests come to us, and do frees come back? */
void hw_objects_check(void);

/* Another sampling interval from now on; objects that are sampled keep theirs. A thread's next sample is still drawn by the old
 * one. */
void hw_objects_interval(unsigned lg_sample);

/* In the child of a fork. */
void hw_objects_forked(void);

const char *hw_objects_state(void); /* "on", "malloc", "off: …" */

#endif
