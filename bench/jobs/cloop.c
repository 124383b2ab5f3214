/* SPDX-License-Identifier: Apache-2.0
 *
 * What cloop.py times, and, with a main, what the bench counts instructions of: pairs N SIZE. */
#include <pthread.h>
#include <stdlib.h>

static void pairs(long n, size_t size)
{
	for (long i = 0; i < n; i++) {
		char *volatile p = malloc(size + (size_t)(i & 63));
		if (p)
			*p = 1;
		free(p);
	}
}

static void *run(void *n)
{
	pairs((long)n, 100);
	return NULL;
}

int loop(long n, int threads)
{
	pthread_t t[16];
	int started = 0, err = threads > 16;
	if (threads == 1) {
		pairs(n, 100);
		return 0;
	}
	for (; !err && started < threads; started += !err)
		err = pthread_create(&t[started], NULL, run, (void *)(n / threads));
	while (started)
		pthread_join(t[--started], NULL);
	return err;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	pairs(atol(argv[1]), (size_t)atol(argv[2]));
	return 0;
}
