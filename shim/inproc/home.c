/* SPDX-License-Identifier: Apache-2.0
 *
 * What must not be Go: it runs before the runtime is there, or in a process that has none any more. */
#define _GNU_SOURCE
#include "home.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

extern int goStart(char *spool, void *say);
extern void goStop(int timeout_ms);

#define EXPORT __attribute__((visibility("default")))
#define SIGNALS 65

static struct sigaction before[SIGNALS];
static int known[SIGNALS];

#define MOST_CLAIMS 4096
static _Atomic int claims[MOST_CLAIMS]; /* descriptor + 1; 0: free */

static _Atomic int home; /* pid of the process that started */

/* Priority 101 runs before the constructors without one, among them the Go runtime's (_rt0_amd64_lib). */
__attribute__((constructor(101))) static void remember_handlers(void)
{
	for (int s = 1; s < SIGNALS; s++)
		known[s] = sigaction(s, NULL, &before[s]) == 0;
}

/* Signals that the runtime unblocks in its own threads (runtime/sigtab_linux_generic.go, _SigUnblock), but the faults. */
static int unblocked_in_go(int s) { return s == SIGPROF || s == SIGILL || s == SIGTRAP || s == SIGSTKFLT; }

static void restore_handlers(void)
{
	for (int s = 1; s < SIGNALS; s++) {
		struct sigaction now;
		if (!known[s] || sigaction(s, NULL, &now) != 0)
			continue;
		struct sigaction then = before[s];
		if (unblocked_in_go(s) && then.sa_handler != SIG_DFL && then.sa_handler != SIG_IGN)
			then.sa_flags |= SA_ONSTACK;
		if (now.sa_handler != then.sa_handler || now.sa_flags != then.sa_flags)
			sigaction(s, &then, NULL);
	}
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

EXPORT int heapwire_inproc_start(const char *spool, void (*say)(const char *line))
{
	int none = 0;
	if (!atomic_compare_exchange_strong(&home, &none, getpid()))
		return 3;
	if (pthread_atfork(NULL, NULL, in_child) != 0)
		return 2;
	/* The call waits until the runtime is there, so its handlers are in place when it returns. */
	int result = goStart((char *)spool, (void *)say);
	restore_handlers();
	return result;
}

EXPORT void heapwire_inproc_stop(int timeout_ms)
{
	int here = getpid();
	if (atomic_compare_exchange_strong(&home, &here, -1))
		goStop(timeout_ms);
}
