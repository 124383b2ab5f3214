/* A library with a thread-local variable that is found through the loader, and an allocation under the loader's lock. */
#include <stdlib.h>

static __thread char block[64];

char *touch(void)
{
	block[0]++;
	return block;
}

__attribute__((constructor)) static void start(void)
{
	void *volatile p = malloc(1000);
	free(p);
}
