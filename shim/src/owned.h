#ifndef HW_OWNED_H
#define HW_OWNED_H

#include "shim.h"

/* What one page range belongs to. */
enum hw_owner { HW_OWNER_ALLOCATOR, HW_OWNER_ARENA, HW_OWNER_STACK };

struct hw_range {
	uintptr_t start, end;
	enum hw_owner owner;
};

/* From here on, pymalloc's arenas are noted. Before Py_Initialize; without an interpreter nothing happens. */
void hw_owned_init(void);

/* The ranges that are mapped now, sorted, without overlap, at most `cap`. Clock thread only. *lost: mappings that found no
 * room in the tables. */
size_t hw_owned_ranges(struct hw_range *r, size_t cap, uint64_t *lost);

/* Size of one of pymalloc's arenas; 0: there is none. */
size_t hw_owned_arena_bytes(void);

/* Sorts; of two that overlap the earlier owner keeps what both have. Returns how many there are then. */
size_t hw_owned_sort(struct hw_range *r, size_t n);

#endif
