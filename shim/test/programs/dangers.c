/* The native half of dangers.py, loaded through ctypes: what a C extension does with threads, locks and the GIL. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

extern void naive_arm(void) __attribute__((weak));

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_t holder;

void arm(void)
{
	if (naive_arm)
		naive_arm();
}

void allocate(long n)
{
	for (long i = 0; i < n; i++) {
		void *volatile p = malloc(600 + (size_t)(i % 64) * 50);
		free(p);
	}
}

static void *one_thread(void *arg)
{
	(void)arg;
	allocate(20);
	return NULL;
}

/* Called with the GIL held: a thread that allocates, and is waited for. */
int joined(void)
{
	pthread_t t;
	if (pthread_create(&t, NULL, one_thread, NULL))
		return 1;
	return pthread_join(t, NULL);
}

static void *holds_and_allocates(void *arg)
{
	(void)arg;
	pthread_mutex_lock(&mutex);
	pthread_barrier_wait(&barrier); /* the other one has the GIL */
	allocate(20);
	pthread_mutex_unlock(&mutex);
	return NULL;
}

/* Called with the GIL held: wants a lock whose holder allocates. */
int lock_order(void)
{
	pthread_barrier_init(&barrier, NULL, 2);
	if (pthread_create(&holder, NULL, holds_and_allocates, NULL))
		return 1;
	pthread_barrier_wait(&barrier);
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	return pthread_join(holder, NULL);
}

/* Called with the GIL released, for the rest of the process's life. */
void busy(void)
{
	for (;;) {
		pthread_mutex_lock(&mutex);
		allocate(2);
		pthread_mutex_unlock(&mutex);
		sched_yield();
	}
}

/* What a library does at the end: it takes its lock once more. A thread that was ended inside malloc still has it. */
__attribute__((destructor)) static void at_unload(void)
{
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
}

/* An allocator of objects on top of the one that is there (Include/cpython/pymem.h: PyMemAllocatorEx; domains 1 and 2). */
struct allocator {
	void *ctx;
	void *(*malloc)(void *, size_t);
	void *(*calloc)(void *, size_t, size_t);
	void *(*realloc)(void *, void *, size_t);
	void (*free)(void *, void *);
};

static struct allocator below[3];

static void *top_malloc(void *ctx, size_t n)
{
	struct allocator *a = ctx;
	return a->malloc(a->ctx, n);
}

static void *top_calloc(void *ctx, size_t n, size_t size)
{
	struct allocator *a = ctx;
	return a->calloc(a->ctx, n, size);
}

static void *top_realloc(void *ctx, void *p, size_t n)
{
	struct allocator *a = ctx;
	return a->realloc(a->ctx, p, n);
}

static void top_free(void *ctx, void *p)
{
	struct allocator *a = ctx;
	a->free(a->ctx, p);
}

/* Called with the GIL held: 0 puts it on, 1 takes it away. */
int on_top(int away)
{
	void (*get)(int, struct allocator *) = (void (*)(int, struct allocator *))dlsym(RTLD_DEFAULT, "PyMem_GetAllocator");
	void (*set)(int, struct allocator *) = (void (*)(int, struct allocator *))dlsym(RTLD_DEFAULT, "PyMem_SetAllocator");
	if (!get || !set)
		return 1;
	for (int domain = 1; domain <= 2; domain++) {
		struct allocator a;
		get(domain, &a);
		if (away) {
			if (a.ctx != &below[domain])
				return 1;
			set(domain, &below[domain]);
			continue;
		}
		below[domain] = a;
		a = (struct allocator){&below[domain], top_malloc, top_calloc, top_realloc, top_free};
		set(domain, &a);
	}
	return 0;
}
