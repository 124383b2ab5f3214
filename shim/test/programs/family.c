/* Every member of the malloc family, one allocation sampled each, on a thread with the smallest stack there may be. Says what
 * is not as it should be; exit status 1 then.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int bad;

#define WANT(cond)                                 \
	do {                                       \
		if (!(cond)) {                     \
			bad = 1;                   \
			printf("not so: %s\n", #cond); \
		}                                  \
	} while (0)

static void *all(void *arg)
{
	(void)arg;
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	errno = 77;
	void *p = malloc(100);
	WANT(p && malloc_usable_size(p) >= 100 && errno == 77);
	p = realloc(p, 10000);
	WANT(p && errno == 77);
	free(p);
	p = calloc(10, 100);
	WANT(p && *(char *)p == 0 && errno == 77);
	p = reallocarray(p, 20, 100);
	WANT(p && errno == 77);
	free(p);
	WANT(posix_memalign(&p, 256, 1000) == 0 && (uintptr_t)p % 256 == 0);
	free(p);
	p = aligned_alloc(4096, 8192);
	WANT(p && (uintptr_t)p % 4096 == 0);
	free(p);
	p = memalign(64, 100);
	WANT(p && (uintptr_t)p % 64 == 0);
	free(p);
	p = valloc(100);
	WANT(p && (uintptr_t)p % page == 0);
	free(p);
	p = pvalloc(100); /* glibc's own would hand out glibc's memory, and this free would crash */
	WANT(p && (uintptr_t)p % page == 0 && malloc_usable_size(p) >= page);
	free(p);
	errno = 0;
	volatile size_t huge = SIZE_MAX - 10;
	p = pvalloc(huge);
	WANT(!p && errno == ENOMEM);
	errno = 0;
	p = malloc(huge);
	WANT(!p && errno == ENOMEM);
	p = malloc(10);
	errno = 0;
	void *q = realloc(p, huge);
	WANT(!q && errno == ENOMEM);
	free(p);
	p = strdup("a copy");
	WANT(p && !strcmp(p, "a copy"));
	free(p);
	free(NULL);
	return NULL;
}

int main(void)
{
	pthread_attr_t attr;
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, PTHREAD_STACK_MIN);
	pthread_t t;
	if (pthread_create(&t, &attr, all, NULL)) {
		printf("no thread\n");
		return 1;
	}
	pthread_join(t, NULL);
	all(NULL);
	puts(bad ? "bad" : "good");
	return bad;
}
