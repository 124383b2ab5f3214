/* usage: tls_storm ROUNDS THREADS LIBRARY…
 *
 * Threads use the thread-local variables of libraries that came after them, and allocate, while the main thread opens the next
 * batch: every thread's table has to grow, several times, and the loader's lock is held most of the time. Then all is closed
 * and begun again. Prints a byte a round.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define BATCH 16

typedef char *touch_fn(void);

static touch_fn **touch;
static int libraries;
static pthread_barrier_t barrier;

static void allocate(unsigned seed)
{
	for (unsigned i = 0; i < 4; i++) {
		void *volatile p = malloc(seed * 37 % 900 + 16);
		p = realloc(p, seed * 91 % 5000 + 16);
		free(p);
		seed = seed * 1103515245 + 12345;
	}
}

static void *user(void *arg)
{
	for (int from = -BATCH; from < libraries; from += BATCH) {
		for (int i = from < 0 ? 0 : from; i < from + BATCH && i < libraries; i++)
			touch[i]();
		allocate((unsigned)(size_t)arg);
		pthread_barrier_wait(&barrier); /* the next batch is there */
	}
	return NULL;
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	int rounds = atoi(argv[1]), threads = atoi(argv[2]);
	libraries = argc - 3;
	void **handle = calloc((size_t)libraries, sizeof *handle);
	pthread_t *t = calloc((size_t)threads, sizeof *t);
	touch = calloc((size_t)libraries, sizeof *touch);
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, 64 << 10);
	for (int r = 0; r < rounds; r++) {
		pthread_barrier_init(&barrier, NULL, (unsigned)threads + 1);
		for (int i = 0; i < threads; i++) {
			if (pthread_create(&t[i], &attr, user, (void *)(size_t)(i + r * 7919))) {
				fprintf(stderr, "no thread\n");
				return 1;
			}
		}
		for (int from = 0; from < libraries + BATCH; from += BATCH) {
			for (int i = from; i < from + BATCH && i < libraries; i++) {
				handle[i] = dlopen(argv[3 + i], RTLD_NOW | RTLD_LOCAL);
				*(void **)&touch[i] = handle[i] ? dlsym(handle[i], "touch") : NULL;
				if (!touch[i]) {
					fprintf(stderr, "%s\n", dlerror());
					return 1;
				}
			}
			pthread_barrier_wait(&barrier);
		}
		for (int i = 0; i < threads; i++)
			pthread_join(t[i], NULL);
		for (int i = 0; i < libraries; i++)
			dlclose(handle[i]);
		pthread_barrier_destroy(&barrier);
		(void)!write(1, ".", 1);
	}
	return 0;
}
