#ifndef HW_SLOTS_H
#define HW_SLOTS_H

#include "out.h"

/* A slot holds one sampled small object. The size is the most that pymalloc serves by itself (SMALL_REQUEST_THRESHOLD, 512 in
 * 3.8 - 3.15); how many there are bounds what of small objects can be live and sampled at once. */
#define HW_SLOT 512u
#ifndef HW_SLOTS_BITS
#define HW_SLOTS_BITS 18
#endif
#define HW_SLOTS (1u << HW_SLOTS_BITS)
#define HW_SLOTS_BYTES ((size_t)HW_SLOT << HW_SLOTS_BITS)

/* Where the slots lie; before there are any, where nothing lies. Hidden, so that a look costs no look into the GOT. */
extern uintptr_t hw_slots_base __attribute__((visibility("hidden")));

/* Is this block one of ours? For whoever frees anything. */
static inline bool hw_slots_have(const void *p)
{
	return (uintptr_t)p - hw_slots_base < HW_SLOTS_BYTES;
}

/* What pymalloc takes for a request of n bytes, 1 to 512: multiples of 16 (ALIGNMENT). */
static inline size_t hw_slots_round(size_t n)
{
	return (n + 15) & ~(size_t)15;
}

/* Reserves the memory. False where there is none. */
bool hw_slots_init(void);

/* A block for a sampled request of `size` bytes (rounded), noted with the stack of this thread. `lg` is the sampling interval's
 * logarithm. NULL, counted, when all are taken. Callable from the sampling path; keeps errno. */
void *hw_slots_take(size_t size, unsigned lg);

/* The block is from now on one of `size` bytes, requested here. */
void hw_slots_again(void *p, size_t size, unsigned lg);

/* The block is free. Any thread, any time, also blocks from before a fork and after the interpreter has ended. */
void hw_slots_release(void *p);

/* As requested, rounded; 0 for a block that is free. */
size_t hw_slots_size(const void *p);

/* How many blocks there are. */
uint32_t hw_slots_live(void);

/* In the child of a fork: what is there is the parent's. */
void hw_slots_forked(void);

/* Clock thread: writes the section, unless nothing is sampled. Calls used() for each address. */
void hw_slots_write(struct hw_out *o, void (*used)(uint64_t address));

uint64_t hw_slots_samples(void); /* taken since start */
uint64_t hw_slots_lost(void);    /* those that found no slot */

#endif
