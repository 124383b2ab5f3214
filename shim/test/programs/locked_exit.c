/* locked_exit.c: a process leaves, and its last dump stands at its last step, the rename, when another thread forks and stands still
 * with every lock of jemalloc's: the dump has to end all the same, and the process with it. Exit status 3 if it did not for a while.
 *
 * It stands in front of two calls of the C library's by its own definitions of them (built with -rdynamic): rename, and the
 * registration of fork handlers, where it comes before jemalloc, so that its own handler runs after jemalloc's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int at_the_rename, go_on;

int rename(const char *from, const char *to)
{
	if (strstr(to, ".exit.heap")) {
		at_the_rename = 1;
		while (!go_on)
			usleep(1000);
	}
	return (int)syscall(SYS_rename, from, to);
}

static void with_all_locks(void)
{
	go_on = 1;
	for (int i = 0; i < 500; i++)
		usleep(10000);
	syscall(SYS_exit_group, 3);
}

int __register_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void), void *object)
{
	static int (*next)(void (*)(void), void (*)(void), void (*)(void), void *);
	if (!next) {
		*(void **)&next = dlsym(RTLD_NEXT, "__register_atfork");
		next(with_all_locks, NULL, NULL, NULL);
	}
	return next(prepare, parent, child, object);
}

static void *forks(void *arg)
{
	while (!at_the_rename)
		usleep(1000);
	fork();
	return arg;
}

int main(void)
{
	pthread_t t;
	for (int i = 0; i < 64; i++)
		memset(malloc(100000), 1, 100000);
	pthread_create(&t, NULL, forks, NULL);
	_exit(0);
}
