#ifndef HW_SELFCHECK_H
#define HW_SELFCHECK_H

#include "shim.h"

/* Finds the functions of the interpreter that the check calls; in the constructor. False if one is missing. */
bool hw_selfcheck_init(void);

/* In the interpreter's main thread, with the GIL: compares a walk with what the interpreter says of the same frames, once. Turns
 * Python frames off, and says so, if anything differs. */
void hw_selfcheck(void);

#endif
