/* SPDX-License-Identifier: Apache-2.0
 *
 * What must not be Go: it runs before the runtime is there, or in a process that has none any more. */
#define _GNU_SOURCE
#include "home.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern int goStart(char *spool, void *say);
extern void goStop(int timeout_ms);

#define EXPORT __attribute__((visibility("default")))
#define INTERNAL __attribute__((weak, visibility("hidden"))) /* there only where `link` was at work */

/* What the loader would call at load (Go's _rt0_amd64_linux_lib). GNU ld gives a section with such a name its ends. */
typedef void (*initialiser)(int argc, char **argv, char **envp);
extern initialiser __start_heapwire_go_init[] INTERNAL, __stop_heapwire_go_init[] INTERNAL;

/* runtime/sigtab_linux_generic.go: for each signal what the runtime does about it, and its name, a Go string. */
struct signal_row {
	int32_t flags;
	const char *name;
	int64_t name_len;
};
#define SIGNALS 65
extern struct signal_row go_signals[SIGNALS] __asm__("runtime.sigtable") INTERNAL;

#define MOST_CLAIMS 4096
static _Atomic int claims[MOST_CLAIMS]; /* descriptor + 1; 0: free */

static _Atomic int home; /* pid of the process that started */

/* The environment as it was at load, in the form that Go reads: arguments, NULL, variables, NULL, and an empty auxiliary
 * vector, for which the runtime then asks /proc. The one on the stack is written over by whoever sets the process's title. */
static char **environment;

static char **copy_environment(char **envp)
{
	size_t n = 0, text = 0;
	for (; envp && envp[n]; n++)
		text += strlen(envp[n]) + 1;
	char **block = malloc((n + 5) * sizeof *block + text + sizeof "heapwire");
	if (block == NULL)
		return NULL;
	char *p = (char *)(block + n + 5);
	block[0] = strcpy(p, "heapwire");
	p += sizeof "heapwire";
	block[1] = NULL;
	for (size_t i = 0; i < n; i++) {
		block[2 + i] = strcpy(p, envp[i]);
		p += strlen(p) + 1;
	}
	block[2 + n] = block[3 + n] = block[4 + n] = NULL; /* AT_NULL is 0 */
	return block;
}

__attribute__((constructor)) static void at_load(int argc, char **argv, char **envp)
{
	(void)argc;
	(void)argv;
	environment = copy_environment(envp);
}

/* A runtime whose table of signals says nothing installs no handler, changes no flags of others', unblocks nothing in its
 * threads (runtime/signal_unix.go: initsig, minitSignalMask). */
static int leave_signals_alone(void)
{
	if (go_signals == NULL)
		return 0;
	for (int s = 1; s < SIGNALS; s++) /* is it the table that it is taken for? */
		if (go_signals[s].name == NULL || go_signals[s].name_len < 5 || go_signals[s].name_len > 100 ||
		    (memcmp(go_signals[s].name, "SIG", 3) != 0 && memcmp(go_signals[s].name, "signal", 6) != 0))
			return 0;
	for (int s = 0; s < SIGNALS; s++)
		go_signals[s].flags = 0;
	return 1;
}

/* In the child only the forking thread is left. */
static void in_child(void)
{
	for (int i = 0; i < MOST_CLAIMS; i++) {
		int fd = atomic_exchange(&claims[i], 0);
		if (fd > 0)
			close(fd - 1);
	}
}

void inproc_claimed(int fd, int held)
{
	for (int i = 0; i < MOST_CLAIMS; i++) {
		int expected = held ? 0 : fd + 1;
		if (atomic_compare_exchange_strong(&claims[i], &expected, held ? fd + 1 : 0))
			return;
	}
}

void inproc_say(void *say, char *line)
{
	if (say != NULL)
		((void (*)(const char *))say)(line);
}

/* A new thread's table of thread-local storage is allocated by the one that makes it (glibc, elf/dl-tls.c). */
static void (*hide_thread)(void);
int __real_pthread_create(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) __attribute__((weak)); /* where `link` was at work */

__attribute__((visibility("hidden"))) int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	if (hide_thread != NULL)
		hide_thread();
	return __real_pthread_create(thread, attr, fn, arg);
}

EXPORT int heapwire_inproc_start(const char *spool, void (*say)(const char *line), int shared, void (*hide)(void))
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&home, &none, getpid()))
		return 3;
	hide_thread = hide;
	if (__start_heapwire_go_init == __stop_heapwire_go_init || environment == NULL || !leave_signals_alone()) {
		inproc_say((void *)say, "this library was not linked as it must be (shim/inproc/link), or with another Go runtime");
		return 2;
	}
	if (shared && pthread_atfork(NULL, NULL, in_child) != 0)
		return 2;
	for (initialiser *f = __start_heapwire_go_init; f < __stop_heapwire_go_init; f++)
		(*f)(1, environment, environment + 2);
	return goStart((char *)spool, (void *)say); /* waits until the runtime is there */
}

EXPORT void heapwire_inproc_stop(int timeout_ms)
{
	int here = getpid();
	if (atomic_compare_exchange_strong(&home, &here, -1))
		goStop(timeout_ms);
}
