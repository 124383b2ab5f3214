// SPDX-License-Identifier: Apache-2.0

/* A library whose every call loses a kilobyte. */
#include <stdlib.h>
#include <string.h>

__attribute__((noinline)) static char *workspace(void)
{
	char *block = malloc(1024);
	if (block)
		memset(block, 1, 1024);
	return block;
}

int eager_call(void);

int eager_call(void)
{
	char *volatile lost = workspace();
	return lost ? lost[0] : 0;
}
