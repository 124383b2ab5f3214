/* What every file of the shim shares: visibility, counters, the one state word.
 *
 * Names: `hw_` is shared between the files, `heapwire_` is exported, everything else is static. The build hides all but
 * what exports.map lists.
 */
#ifndef HW_SHIM_H
#define HW_SHIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(__x86_64__) || !defined(__linux__)
#error "the shim knows the register rules and struct layouts of x86-64 Linux only"
#endif

#define HW_VERSION "0.1.0"

/* Shown to the program: exports.map has its name, and so must the compiler. */
#define HW_EXPORT __attribute__((visibility("default")))

#define hw_likely(x) __builtin_expect(!!(x), 1)
#define hw_unlikely(x) __builtin_expect(!!(x), 0)

/* A number of the thread's own: its control block, whose first word is its address (x86-64 psABI). gcc has a builtin from 11 on. */
static inline uintptr_t hw_thread_pointer(void)
{
	uintptr_t p;
	__asm__("movq %%fs:0, %0" : "=r"(p));
	return p;
}

/* Takes back a failed dlsym's error, by a lookup that succeeds: the program may ask for errors of its own. dlerror would put the
 * message together first, which allocates, and before glibc 2.34 it does not bear an allocator in front of ours that looks up a
 * symbol at that moment. */
static inline void hw_forget_dlerror(void)
{
	(void)dlsym(RTLD_DEFAULT, "malloc");
}

/* Everything the shim loses is counted here and printed in the next dump's HEAPWIRE_META (docs/spool.md says what each
 * figure means). Relaxed increments only: the figures are totals, they order nothing. */
struct hw_counters {
	_Atomic uint64_t samples;
	_Atomic uint64_t samples_python;
	_Atomic uint64_t frames_failed;
	_Atomic uint64_t native_failed;
	_Atomic uint64_t stacks_cut;
	_Atomic uint64_t captures_lost;
	_Atomic uint64_t functions;
	_Atomic uint64_t functions_dropped;
};

extern struct hw_counters hw_count;

#define HW_INC(field) ((void)atomic_fetch_add_explicit(&hw_count.field, 1, memory_order_relaxed))
#define HW_GET(field) atomic_load_explicit(&hw_count.field, memory_order_relaxed)

#endif
