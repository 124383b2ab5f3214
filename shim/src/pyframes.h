#ifndef HW_PYFRAMES_H
#define HW_PYFRAMES_H

#include "shim.h"

#define HW_KEEP_LEAF 128 /* jemalloc's depth limit (PROF_BT_MAX_LIMIT of 5.3.0): more leaf frames can never be used */
#define HW_KEEP_ROOT 32
#define HW_KEEP_RUNS 64

/* Frames of one walk, leaf first: the first HW_KEEP_LEAF and, in a ring, the last HW_KEEP_ROOT of `total`. */
struct hw_pyframe {
	const char *code; /* PyCodeObject */
	int64_t addr;     /* byte offset of the instruction in it; below 0: not started */
};

struct hw_pywalk {
	uint32_t total;
	bool stopped; /* a pointer made no sense: what is there is right, the rest is missing */
	/* Stack address inside the C frame that runs the innermost Python frame: native frames below it are its leaf
	 * side. 0: unknown (3.8, 3.9: hw_py_is_eval tells). */
	uintptr_t boundary;
	/* Runs of frames that one C call of the eval loop executes, leaf first: the stack address in that C frame, and how many
	 * frames lie up to the run's end. Only what full stacks need; runs beyond are left out. */
	uint32_t nruns;
	struct {
		uintptr_t at;
		uint32_t end;
	} runs[HW_KEEP_RUNS];
	struct hw_pyframe leaf[HW_KEEP_LEAF];
	struct hw_pyframe root[HW_KEEP_ROOT];
};

/* Looks for an interpreter among the loaded objects; called in the constructor. 0 when there is none, its minor version
 * when it is CPython 3, -1 for anything else that calls itself Python. Does not enable frames. */
int hw_py_find(void);

/* Enables the walk if the interpreter's layout is known and agrees with its own description. NULL when on, else the reason
 * in words. */
const char *hw_py_enable(void);

/* The layout in use, for the test that breaks it. */
struct hw_layout;
struct hw_layout *hw_py_layout(void);

/* A layout that no interpreter has confirmed waits for the self-check, which turns it on to look. */
bool hw_py_on_trial(void);
void hw_py_try(void);

/* Turns the walk off for good. Walks that are under way end as they would have. */
void hw_py_disable(const char *reason);

const char *hw_py_version(void);      /* "3.12.1", "" without an interpreter */
const char *hw_py_frames_state(void); /* "on" or "off: …" */
int hw_py_minor(void);

/* Symbol lookup in the interpreter, for the files that talk to it outside the hook. */
void *hw_py_symbol(const char *name);
void *hw_py_is_finalizing_symbol(void);

/* Is the calling thread, which has the GIL, in the middle of importlib's own bookkeeping? One caller at a time. True where
 * frames are off, too: nothing is known then. */
bool hw_py_inside_importlib(void);

/* Clock thread, each second: pages that could be read are asked for again. */
void hw_py_forget_pages(void);

/* In the hook: walks the calling thread's frames. No frames is not an error. */
void hw_py_walk(struct hw_pywalk *w);

/* In the hook: the frame as the value that goes into the stack. HW_MARK_STOPPED if the code object makes no sense. */
uint64_t hw_py_encode(const struct hw_pyframe *f);

/* In the hook: is this address in the eval loop? Only asked where boundary is 0. */
bool hw_py_is_eval(uintptr_t ip);

/* In the hook: may the interpreter's thread state be asked for when the allocation's caller is the dynamic loader? */
bool hw_py_safe_in_loader(void);

#endif
