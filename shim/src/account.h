#ifndef HW_ACCOUNT_H
#define HW_ACCOUNT_H

#include "out.h"

/* Resident bytes of the process by what they belong to. The parts add up to `counted`. */
enum hw_part {
	HW_PART_ALLOCATOR, /* jemalloc's mappings */
	HW_PART_ARENAS,	   /* pymalloc's */
	HW_PART_STACKS,	   /* of all threads */
	HW_PART_HEAP,	   /* [heap], which this allocator does not use */
	HW_PART_FILES,	   /* mapped files, their changed pages too */
	HW_PART_SHARED,	   /* shared memory: /dev/shm, memfd, System V, shared anonymous */
	HW_PART_OTHER,	   /* anonymous memory of nobody we know */
	HW_PARTS
};

struct hw_account {
	uint64_t part[HW_PARTS], counted;
	uint64_t arenas, arena_bytes; /* number, size of all */
	uint64_t arena_blocks;	      /* bytes of pymalloc blocks in use, 0: not known */
	uint64_t stacks;	      /* thread stacks found, the first thread's included */
	uint64_t lost;		      /* mappings that nobody could be told of */
};

/* Looks at every page of the process. False where it was not done: it would take more than a hundredth of the time since it
 * was done last, it took too long, or the kernel has no such list. Clock thread only. */
bool hw_account(struct hw_account *a);

extern const char *const hw_account_keys[HW_PARTS];

/* The section HEAPWIRE_MAPPINGS of the pass just made: the largest named ones. */
void hw_account_mappings(struct hw_out *o);

/* In the child of a fork: nothing was looked at yet. */
void hw_account_forked(void);

#endif
