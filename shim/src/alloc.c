/* alloc.c: jemalloc as the program's allocator: its built-in options, and everything asked of it through mallctl.
 *
 * jemalloc configures itself at the first malloc, before any constructor, so profiling is compiled in as enabled but
 * inactive: a process that is no target takes no sample. Options of the user's MALLOC_CONF come later and win.
 *
 * The mallctls beyond prof.* of 4.x are asked for at run time; one that is missing turns profiling off with a reason.
 */
#include "alloc.h"

#include "config.h"
#include "sample.h"

#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <stdlib.h>
#include <unistd.h>
#include <dlfcn.h>

int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);
void *mallocx(size_t size, int flags);

/* docs/performance.md has what each is worth. Buffers up to 256 KiB stay with the thread that freed them, and a buffer beyond
 * 8 MiB is not given back to the kernel the moment it is freed. */
#define FAST "tcache_max:262144,oversize_threshold:0"

/* The library's own options again, with free pages given back after one second and not ten. */
#define LEAN "tcache_max:32768,oversize_threshold:8388608,dirty_decay_ms:1000,narenas:2"

const char *malloc_conf = "prof:true,prof_active:false,lg_prof_sample:19," FAST;

/* What jemalloc calls for secure_getenv (the Makefile renames it), at the first malloc, under its lock of initialisation: before
 * any constructor of ours. A later option wins over an earlier one, so the user's stand behind ours. */
const char *hw_alloc_environment(const char *name)
{
	static char joined[4096];
	const char *user = secure_getenv(name), *which = secure_getenv("HEAPWIRE_ALLOCATOR");
	if (strcmp(name, "MALLOC_CONF") || !which || strcasecmp(which, "lean"))
		return user;
	int n = snprintf(joined, sizeof joined, "%s%s%s", LEAN, user && *user ? "," : "", user ? user : "");
	return n < (int)sizeof joined ? joined : user;
}

static bool get(const char *name, void *v, size_t size)
{
	size_t n = size;
	return mallctl(name, v, &n, NULL, 0) == 0 && n == size;
}

static uint64_t get_size(const char *name)
{
	size_t v = 0;
	return get(name, &v, sizeof v) ? v : 0;
}

static bool get_bool(const char *name)
{
	bool v = false;
	return get(name, &v, sizeof v) && v;
}

static bool unbiased = true;

/* Whether the malloc that the program's references are bound to is this one: not to be seen from its address, which in a
 * program that is not position-independent is a stub in the program itself. */
static bool serves_the_program(void)
{
	void *(*volatile program_malloc)(size_t) = (void *(*)(size_t))dlsym(RTLD_DEFAULT, "malloc");
	void (*volatile program_free)(void *) = (void (*)(void *))dlsym(RTLD_DEFAULT, "free");
	uint64_t before = 0, after = 0;
	get("thread.allocated", &before, sizeof before);
	void *p = program_malloc(64);
	get("thread.allocated", &after, sizeof after);
	program_free(p);
	return after > before;
}

const char *hw_alloc_check(void)
{
	const char *conf = secure_getenv("MALLOC_CONF");
	unbiased = !conf || !strstr(conf, "prof_unbias:false");
	if (!serves_the_program())
		return "another malloc comes before heapwire's: put libheapwire.so first in LD_PRELOAD";
	if (!get_bool("config.prof"))
		return "the jemalloc that was linked in cannot profile (config.prof is false)";
	if (!get_bool("opt.prof"))
		return "MALLOC_CONF turns profiling off (prof:false)";
	return NULL;
}

/* jemalloc keeps its books of a stack in small blocks of arena 0. A program that frees each sample before the next one is
 * taken makes it take pages for them and give them back each time, two thirds of what a sample costs. One block that stays
 * keeps its page in place. Values of the flags: MALLOCX_ARENA(0) and MALLOCX_TCACHE_NONE of jemalloc.h. */
static void keep_books_in_place(void)
{
	static const int flags = (0 + 1) << 20 | (-1 + 2) << 8;
	static const unsigned short sizes[] = {64,  80,	 96,  112, 128, 160, 192, 224, 256,  320,
					       384, 448, 512, 640, 768, 896, 1024, 1280};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		void *volatile kept = mallocx(sizes[i], flags);
		(void)kept;
	}
}

/* The first arena is made before jemalloc has read opt.oversize_threshold, and keeps 8 MiB (5.3.0, arena_init_huge). */
void hw_alloc_tune(void)
{
	size_t threshold = 0;
	if (!get("opt.oversize_threshold", &threshold, sizeof threshold))
		return;
	if (!threshold)
		threshold = SIZE_MAX >> 1;
	mallctl("arena.0.oversize_threshold", NULL, NULL, &threshold, sizeof threshold);
}

const char *hw_alloc_start(void)
{
	keep_books_in_place();
	if (hw_config.lg_sample_set) {
		size_t lg = hw_config.lg_sample;
		if (mallctl("prof.reset", NULL, NULL, &lg, sizeof lg))
			return "jemalloc does not take the sampling interval (prof.reset)";
		/* This thread's distance to its next sample was drawn for the old interval and stays so (prof_reset in 5.3.0).
		 * One allocation beyond it makes jemalloc draw again: e^-128 that 64 MiB are not enough. Not touched, and not a
		 * sample, since sampling is still inactive. */
		void *volatile far = malloc(64 << 20);
		free(far);
	}
	void (*hook)(void **, unsigned *, unsigned) = hw_sample_hook;
	if (mallctl("experimental.hooks.prof_backtrace", NULL, NULL, &hook, sizeof hook))
		return "jemalloc has no backtrace hook (experimental.hooks.prof_backtrace, 5.3.0 and later)";
	bool on = true;
	if (mallctl("prof.active", NULL, NULL, &on, sizeof on))
		return "jemalloc does not start sampling (prof.active)";
	return NULL;
}

void hw_alloc_hide_thread(void)
{
	bool off = false;
	mallctl("thread.prof.active", NULL, NULL, &off, sizeof off);
}

int hw_alloc_dump(const char *path)
{
	return mallctl("prof.dump", NULL, NULL, &path, sizeof path);
}

static void refresh(void)
{
	uint64_t epoch = 1;
	size_t n = sizeof epoch;
	mallctl("epoch", &epoch, &n, &epoch, n);
}

/* 4096 is MALLCTL_ARENAS_ALL: all arenas merged (jemalloc/jemalloc.h). */
#define ALL "stats.arenas.4096."

static void live(uint64_t *bytes, uint64_t *objects)
{
	refresh();
	*bytes = get_size("stats.allocated");
	uint64_t small_in = 0, small_out = 0, large_in = 0, large_out = 0;
	get(ALL "small.nmalloc", &small_in, sizeof small_in);
	get(ALL "small.ndalloc", &small_out, sizeof small_out);
	get(ALL "large.nmalloc", &large_in, sizeof large_in);
	get(ALL "large.ndalloc", &large_out, sizeof large_out);
	*objects = small_in - small_out + large_in - large_out;
}

void hw_alloc_forget(uint64_t *bytes, uint64_t *objects)
{
	live(bytes, objects);
	mallctl("prof.reset", NULL, NULL, NULL, 0);
}

bool hw_alloc_resample(unsigned lg_sample, uint64_t *bytes, uint64_t *objects)
{
	size_t lg = lg_sample;
	uint64_t b, o;
	live(&b, &o);
	if (mallctl("prof.reset", NULL, NULL, &lg, sizeof lg))
		return false;
	*bytes = b;
	*objects = o;
	return true;
}

bool hw_alloc_stats(struct hw_alloc_stats *s)
{
	refresh();
	*s = (struct hw_alloc_stats){
		.allocated = get_size("stats.allocated"),
		.active = get_size("stats.active"),
		.metadata = get_size("stats.metadata"),
		.resident = get_size("stats.resident"),
		.mapped = get_size("stats.mapped"),
		.retained = get_size("stats.retained"),
	};
	return s->allocated != 0;
}

uint64_t hw_alloc_thread_allocated(void)
{
	uint64_t v = 0;
	get("thread.allocated", &v, sizeof v);
	return v;
}

uint64_t hw_alloc_sample_bytes(void)
{
	size_t lg = 19;
	get("prof.lg_sample", &lg, sizeof lg);
	return 1ull << lg;
}

bool hw_alloc_accum(void)
{
	return get_bool("opt.prof_accum");
}

/* opt.prof_unbias can't be read back in 5.3.0. It is on unless an option says otherwise, and of the places for options
 * only the user's MALLOC_CONF is looked at. */
bool hw_alloc_unbiased(void)
{
	return unbiased;
}

const char *hw_alloc_version(void)
{
	const char *v = "";
	get("version", &v, sizeof v);
	return v;
}
