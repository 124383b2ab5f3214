/* usage: keeps_errno ROUNDS
 *
 * A round: the whole malloc family on a thread with the smallest stack there may be, with errno looked at after each call,
 * and again in the thread's last destructor, in a signal handler on an alternate stack, and on the main thread. Prints a byte
 * a round; says what is not as it should be, exit status 1 then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void naive_arm(void) __attribute__((weak));

#define MARK 77

static int bad;
static pthread_key_t key;

static void wrong(const char *what)
{
	bad = 1;
	(void)!write(2, what, strlen(what));
	(void)!write(2, "\n", 1);
}

#define KEPT(call)                                   \
	do {                                         \
		errno = MARK;                        \
		call;                                \
		if (errno != MARK)                   \
			wrong("errno after " #call); \
	} while (0)
#define FAILS(call)                                          \
	do {                                                 \
		errno = MARK;                                \
		if ((call) || errno != ENOMEM)               \
			wrong("not refused with ENOMEM: " #call); \
	} while (0)

static void family(void)
{
	void *volatile p = NULL;
	volatile size_t huge = SIZE_MAX / 2 - 10;
	KEPT(p = malloc(100));
	KEPT(p = realloc(p, 10000));
	KEPT(p = realloc(p, 10));
	KEPT(free(p));
	KEPT(p = calloc(10, 100));
	KEPT(p = reallocarray(p, 20, 100));
	KEPT(free(p));
	void *q = NULL;
	KEPT((void)!posix_memalign(&q, 256, 1000));
	KEPT(free(q));
	KEPT(p = aligned_alloc(4096, 8192));
	KEPT(free(p));
	KEPT(p = memalign(64, 100));
	KEPT(free(p));
	KEPT(p = valloc(100));
	KEPT(free(p));
	KEPT(p = pvalloc(100));
	KEPT((void)malloc_usable_size(p));
	KEPT(free(p));
	KEPT(free(NULL));
	KEPT(p = malloc(40 << 20));
	KEPT(free(p));
	FAILS(malloc(huge));
	FAILS(calloc(huge, 1));
	p = malloc(8);
	FAILS(realloc(p, huge)); /* jemalloc's own realloc and memalign, 5.3.0, leave errno as it was */
	free(p);
	FAILS(memalign(64, huge));
}

static void last(void *arg)
{
	(void)arg;
	void *volatile p = NULL;
	KEPT(p = malloc(700));
	KEPT(free(p));
}

static void *thread(void *arg)
{
	family();
	pthread_setspecific(key, arg);
	return NULL;
}

static void on_signal(int sig)
{
	(void)sig;
	void *volatile p = NULL;
	KEPT(p = malloc(900));
	KEPT(free(p));
}

static void at_exit(void)
{
	family();
	if (bad)
		_exit(1);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	static char stack[64 << 10];
	stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
	struct sigaction act = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
	pthread_attr_t attr;
	pthread_key_create(&key, last);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
	sigaltstack(&alternate, NULL);
	sigaction(SIGUSR1, &act, NULL);
	atexit(at_exit);
	if (naive_arm)
		naive_arm();
	for (int r = 0; r < rounds && !bad; r++) {
		pthread_t t;
		if (pthread_create(&t, &attr, thread, &key))
			return 1;
		pthread_join(t, NULL);
		raise(SIGUSR1); /* outside malloc: a handler that allocates inside it is the program's own mistake */
		family();
		(void)!write(1, ".", 1);
	}
	return bad;
}
