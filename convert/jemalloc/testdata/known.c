/* Allocates amounts that are known, at sites that are told apart by function, and leaves a heap dump at argv[1].
 * All sizes are jemalloc size classes, so that usable sizes are the requested ones. Prints "site objects bytes" lines. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int mallctl(const char *name, void *old, size_t *oldlen, void *new, size_t newlen);

static void **keep;
static size_t kept;
static void *volatile seen; /* keeps the compiler from removing a malloc that is freed at once */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void hold(void *p, size_t size)
{
    if (!p)
        abort();
    memset(p, 1, size);
    pthread_mutex_lock(&lock);
    keep[kept++] = p;
    pthread_mutex_unlock(&lock);
}

#define SITE __attribute__((noinline, noclone, used)) static void

SITE site_small(int n) { for (int i = 0; i < n; i++) hold(malloc(48), 48); }
SITE site_page(int n) { for (int i = 0; i < n; i++) hold(malloc(4096), 4096); }
SITE site_big(int n) { for (int i = 0; i < n; i++) hold(calloc(1, 8388608), 8388608); }
SITE site_mixed(int n)
{
    for (int i = 0; i < n; i++) {
        size_t size = i % 1000 == 0 ? 1048576 : 64;
        hold(malloc(size), size);
    }
}
SITE site_freed(int n)
{
    for (int i = 0; i < n; i++) {
        void *p = malloc(16384);
        seen = p;
        free(seen);
    }
}

SITE site_table(size_t size) { keep = malloc(size); seen = keep; }

static void *thread(void *arg)
{
    (void)arg;
    site_small(20000);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *file = argv[argc - 1];
    pthread_t t[4];

    site_table(16777216);
    for (int i = 0; i < 4; i++)
        pthread_create(&t[i], NULL, thread, NULL);
    site_page(10000);
    site_mixed(20000);
    site_big(4);
    site_freed(5000);
    for (int i = 0; i < 4; i++)
        pthread_join(t[i], NULL);
    if (mallctl("prof.dump", NULL, NULL, &file, sizeof file)) {
        fprintf(stderr, "mallctl prof.dump failed: is jemalloc built with profiling?\n");
        return 3;
    }
    printf("site_small 80000 3840000\n");
    printf("site_page 10000 40960000\n");
    printf("site_mixed 20000 %d\n", 20 * 1048576 + 19980 * 64);
    printf("site_big 4 33554432\n");
    printf("site_freed 0 0\n");
    printf("site_table 1 16777216\n");
    return 0;
}
