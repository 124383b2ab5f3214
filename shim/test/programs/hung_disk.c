/* hung_disk.c: whoever writes to a file of the spool stands still, as on a disk that does not answer, until it is let go. Meanwhile
 * the program forks and allocates. Says how far it came.
 *
 * With "slow" each write only takes its time, and the program allocates; with "busy" it takes processor time, and the program does
 * nothing. It ends when there were four dumps.
 *
 * It stands in front of the C library's calls by its own definitions of them (built with -rdynamic). jemalloc writes by syscall().
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static _Atomic int standing, let_go, armed, newest;
static enum { HANGS, SLOW, BUSY } disk;

static long raw(long n, long a, long b, long c, long d, long e, long f)
{
	long result;
	register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
	__asm__ volatile("syscall" : "=a"(result) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
	return result;
}

static long cpu_us(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void take_time(void)
{
	if (disk == SLOW)
		usleep(100000);
	else
		for (long end = cpu_us() + 4000; cpu_us() < end;)
			;
}

static void stand_still(int fd)
{
	char name[48], path[512];
	if (!armed)
		return;
	snprintf(name, sizeof name, "/proc/thread-self/fd/%d", fd);
	ssize_t n = readlink(name, path, sizeof path - 1);
	if (n <= 0)
		return;
	path[n] = 0;
	const char *dump = strstr(path, "/.0"); /* the one in the making, .000001.tmp */
	if (!dump)
		return;
	newest = atoi(dump + 2);
	if (disk != HANGS) {
		take_time();
		return;
	}
	standing = 1;
	while (!let_go)
		usleep(1000);
}

static long answer(long result)
{
	if (result < 0 && result > -4096) {
		extern int *__errno_location(void);
		*__errno_location() = (int)-result;
		return -1;
	}
	return result;
}

long syscall(long n, ...)
{
	va_list v;
	va_start(v, n);
	long a = va_arg(v, long), b = va_arg(v, long), c = va_arg(v, long), d = va_arg(v, long), e = va_arg(v, long), f = va_arg(v, long);
	va_end(v);
	if (n == SYS_write)
		stand_still((int)a);
	return answer(raw(n, a, b, c, d, e, f));
}

ssize_t write(int fd, const void *p, size_t n)
{
	stand_still(fd);
	return answer(raw(SYS_write, fd, (long)p, (long)n, 0, 0, 0));
}

ssize_t sendfile(int to, int from, off_t *at, size_t n)
{
	stand_still(to);
	return answer(raw(SYS_sendfile, to, from, (long)at, (long)n, 0, 0));
}

extern int heapwire_dump(void) __attribute__((weak));

static void *ask(void *unused)
{
	(void)unused;
	return (void *)(intptr_t)heapwire_dump();
}

static int four_dumps(void)
{
	armed = 1;
	while (newest <= 4) {
		usleep(1000);
		if (disk == SLOW)
			free(malloc(100000));
	}
	puts("four dumps");
	return 0;
}

int main(int argc, char **argv)
{
	static void *keep[2000];
	for (int i = 0; i < 2000; i++)
		keep[i] = malloc(1000);
	disk = argc < 2 ? HANGS : strcmp(argv[1], "slow") ? BUSY : SLOW;
	if (disk != HANGS)
		return four_dumps();
	armed = 1;
	pthread_t t;
	pthread_create(&t, NULL, ask, NULL);
	while (!standing)
		usleep(1000);
	puts("the dump stands still");
	fflush(stdout);
	pid_t child = fork();
	if (child == 0)
		_exit(7);
	int status = 0;
	waitpid(child, &status, 0);
	for (int i = 0; i < 2000; i++)
		keep[i] = realloc(keep[i], 2000);
	printf("forked, %d; allocated\n", WEXITSTATUS(status));
	let_go = 1;
	void *result;
	pthread_join(t, &result);
	printf("the dump came: %d\n", (int)(intptr_t)result);
	return keep[1999] == NULL;
}
