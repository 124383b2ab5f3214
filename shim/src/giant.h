#ifndef HW_GIANT_H
#define HW_GIANT_H

#include "out.h"

/* Requests from this size on are noted before they are served; SIZE_MAX until the process is known to be a target. */
extern size_t hw_giant_bytes;

/* In the caller of malloc, before memory is handed out. */
void hw_giant_note(size_t bytes, const char *call);

/* Clock thread: is there a note that no dump has told of? And the largest request among them. */
bool hw_giant_pending(uint64_t *largest);

/* Clock thread: writes the section; what it wrote is forgotten when hw_giant_told says that the dump arrived. Calls used() for each address, so that its function gets a
 * row. */
void hw_giant_write(struct hw_out *o, void (*used)(uint64_t address));

void hw_giant_told(bool arrived);

uint64_t hw_giant_count(void); /* requests since start */
uint64_t hw_giant_lost(void);  /* those that found no room */
void hw_giant_forked(void);

#endif
