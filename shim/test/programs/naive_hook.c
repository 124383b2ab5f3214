/* Hooks for jemalloc's samples that must not be written. Preloaded in front of a jemalloc of its own; NAIVE says which:
 *
 *   libunwind   unwinds with nongnu libunwind, which asks the loader for its list of objects, under the loader's lock
 *   tls         counts in a thread-local variable of a library that came by dlopen (NAIVE_TLS names it)
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int (*unwind)(void **, int);
static char *(*touch)(void);

static void hook(void **vec, unsigned *len, unsigned max)
{
	if (unwind) {
		int n = unwind(vec, (int)max);
		*len = n > 0 ? (unsigned)n : 0;
	} else {
		touch();
		vec[0] = __builtin_return_address(0);
		*len = 1;
	}
}

static void *open_library(const char *path)
{
	void *library = path ? dlopen(path, RTLD_NOW) : NULL;
	if (!library) {
		fprintf(stderr, "naive hook: %s\n", path ? dlerror() : "NAIVE_TLS is not set");
		_exit(77);
	}
	return library;
}

static void *need(void *from, const char *name)
{
	void *s = dlsym(from, name);
	if (!s) {
		fprintf(stderr, "naive hook: no %s: %s\n", name, dlerror());
		_exit(77);
	}
	return s;
}

__attribute__((constructor)) static void start(void)
{
	int (*mallctl)(const char *, void *, size_t *, void *, size_t);
	*(void **)&mallctl = need(RTLD_DEFAULT, "mallctl");
	const char *way = getenv("NAIVE");
	if (way && !strcmp(way, "libunwind"))
		*(void **)&unwind = need(open_library("libunwind.so.8"), "unw_backtrace");
	else
		*(void **)&touch = need(open_library(getenv("NAIVE_TLS")), "touch");
	void (*h)(void **, unsigned *, unsigned) = hook;
	if (mallctl("experimental.hooks.prof_backtrace", NULL, NULL, &h, sizeof h)) {
		fprintf(stderr, "naive hook: jemalloc has no backtrace hook\n");
		_exit(77);
	}
}
