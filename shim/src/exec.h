#ifndef HW_EXEC_H
#define HW_EXEC_H

/* Finds the C library's exec functions and this library's own name. In the constructor of every process, target or not:
 * any process may start a program that refuses the library. */
void hw_exec_init(void);

#endif
