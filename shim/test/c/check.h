/* check.h: checks with a sentence each; `return checked();` at the end of main. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

static int passed, failures;

#define CHECK(cond, ...)                                          \
	do {                                                      \
		if (cond) {                                       \
			passed++;                                 \
		} else {                                          \
			failures++;                               \
			printf("%s:%d: not so: ", __FILE__, __LINE__); \
			printf(__VA_ARGS__);                      \
			printf(" (%s)\n", #cond);                 \
		}                                                 \
	} while (0)

static inline int checked(const char *name)
{
	printf("%s: %d passed, %d failed\n", name, passed, failures);
	return failures != 0;
}

/* A generator with a seed of its own, so that a failure can be run again. */
static inline uint32_t next_random(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

#endif
