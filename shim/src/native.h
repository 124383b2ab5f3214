#ifndef HW_NATIVE_H
#define HW_NATIVE_H

#include "pyframes.h"

/* Return addresses of one walk, leaf first, kept at both ends like Python frames. */
struct hw_natwalk {
	uint32_t total;
	bool ended_early; /* no usable rule for the last address */
	uintptr_t leaf[HW_KEEP_LEAF];
	uintptr_t root[HW_KEEP_ROOT];
	/* Of the leaf entries: where the frame ends on the stack (it begins where the one before ends). 0: not known. */
	uintptr_t begins, ends[HW_KEEP_LEAF];
};

/* Finds the shim's and the loader's own extents and maps the rule cache; once, outside the hook. NULL when the walk works,
 * else the reason in words. */
const char *hw_native_init(void);

/* Has objects be found in a list of our own, as on a C library without _dl_find_object; outside the hook. */
const char *hw_native_use_list(void);
bool hw_native_uses_list(void);

/* Clock thread: forget cached rules if other code is mapped than at the last call. */
void hw_native_refresh(void);

/* In the hook: walks from the caller's frame outwards, leaving out the shim's and the allocator's own frames at the leaf,
 * and ends before the frame that contains stack address `boundary` (0: none), or, if until_eval, before the eval loop. */
void hw_native_walk(struct hw_natwalk *w, uintptr_t boundary, bool until_eval);

/* In the hook: does the address lie in the dynamic loader? */
bool hw_native_is_loader(uintptr_t ip);

/* Does the address lie in this library? */
bool hw_native_is_self(uintptr_t ip);

#endif
