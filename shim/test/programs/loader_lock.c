/* usage: loader_lock ROUNDS
 *
 * One thread stands in a dl_iterate_phdr callback, under the loader's lock, and wants a mutex; another one holds the mutex and
 * allocates. Whoever asks the loader for its objects from inside malloc waits for ever. Prints a byte a round.
 */
#define _GNU_SOURCE
#include <link.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t barrier;

static int callback(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)info, (void)size, (void)arg;
	pthread_barrier_wait(&barrier); /* the mutex is taken, the loader's lock too */
	pthread_mutex_lock(&mutex);
	pthread_mutex_unlock(&mutex);
	return 1;
}

static void *ask(void *arg)
{
	dl_iterate_phdr(callback, arg);
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	pthread_barrier_init(&barrier, NULL, 2);
	for (int r = 0; r < rounds; r++) {
		pthread_t t;
		pthread_mutex_lock(&mutex);
		if (pthread_create(&t, NULL, ask, NULL))
			return 1;
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < 20; i++) {
			void *volatile p = malloc(5000 + (size_t)i * 64);
			free(p);
		}
		pthread_mutex_unlock(&mutex);
		pthread_join(t, NULL);
		(void)!write(1, ".", 1);
	}
	return 0;
}
