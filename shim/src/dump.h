#ifndef HW_DUMP_H
#define HW_DUMP_H

#include "shim.h"

/* Writes one dump and renames it into the process's folder; `why` says what set it off, "" for the clock. 0, or the errno of what failed; a failure is said once on
 * stderr and counted in the next dump. One caller at a time: the clock thread. */
int hw_dump(const char *reason, const char *why);

/* The process's folder, with process.json in it, is there, or is made. 0 or errno. Any thread. */
int hw_dump_folder(void);

/* Any thread: where a file of the program's goes, "<folder>/<number>", with a number that nothing else has. The folder is there.
 * 0 or errno; ERANGE if `size` is too small. */
int hw_dump_place(char *path, size_t size);

/* Any thread: the training step that the next dumps name. */
void hw_dump_step(uint64_t n);

/* Any thread: a dump is about to be asked for. And: has jemalloc, with every lock of its, let go of it? */
void hw_dump_expected(void);
bool hw_dump_past_allocator(void);

/* What the last dump took, nanoseconds. */
uint64_t hw_dump_cost_ns(void);

/* What was allocated when the last dump began. */
uint64_t hw_dump_allocated(void);

/* Notes the start of the first interval. */
void hw_dump_begin(void);

/* In the child of a fork: nothing of the parent's folder and sequence is left. */
void hw_dump_forked(void);

#endif
