/* What a profiler must not do inside malloc, one way at a time, so that the tests know that a program tells them apart.
 * Preloaded by itself in front of the C library's allocator; NAIVE in the environment says which way:
 *
 *   gil     takes Python's lock
 *   lock    takes a lock of its own, and works under it
 *   stack   keeps its frames on the stack, 12 KiB of them
 *   errno   makes a system call that fails
 *   files   has a thread that reads a file again and again; not inside malloc, for once
 *
 * Nothing happens before the program calls naive_arm.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void *(*next_malloc)(size_t);
static int (*ensure)(void);
static void (*release)(int);
static volatile int armed;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static __thread int inside __attribute__((tls_model("initial-exec")));

static void *reads_files(void *arg)
{
	for (char text[256];; usleep(100)) {
		int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
		(void)!read(fd, text, sizeof text);
		close(fd);
	}
	return arg;
}

void naive_arm(void)
{
	const char *way = getenv("NAIVE");
	*(void **)&ensure = dlsym(RTLD_DEFAULT, "PyGILState_Ensure");
	*(void **)&release = dlsym(RTLD_DEFAULT, "PyGILState_Release");
	armed = way ? way[0] : 0;
	pthread_t thread;
	if (armed == 'f')
		pthread_create(&thread, NULL, reads_files, NULL);
}

__attribute__((noinline)) static void frames_on_the_stack(void)
{
	volatile char frames[12288];
	for (size_t i = 0; i < sizeof frames; i += 64)
		frames[i] = 1;
}

static void sample(void)
{
	if (armed == 'g' && ensure) {
		release(ensure());
	} else if (armed == 'l') {
		pthread_mutex_lock(&mutex);
		for (volatile int i = 0; i < 2000; i++)
			;
		pthread_mutex_unlock(&mutex);
	} else if (armed == 's') {
		frames_on_the_stack();
	} else if (armed == 'e') {
		(void)!write(-1, "", 1);
	}
}

void *malloc(size_t n)
{
	if (!next_malloc)
		*(void **)&next_malloc = dlsym(RTLD_NEXT, "malloc");
	/* A signal handler that comes while the lock is held is not what `inside` is for. */
	if (armed && (!inside || armed == 'l')) {
		inside++;
		sample();
		inside--;
	}
	return next_malloc(n);
}
