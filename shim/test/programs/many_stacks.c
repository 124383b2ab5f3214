/* usage: many_stacks DEPTH
 *
 * Holds one block for each of 2^DEPTH ways down a tree of calls, says so, and goes on allocating until its standard input
 * ends. Then says so and leaves.
 */
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

static void left(int depth), right(int depth);

__attribute__((noinline)) static void down(int depth)
{
	if (depth == 0) {
		static void *volatile keep;
		void **p = malloc(64);
		*p = keep;
		keep = p;
		return;
	}
	left(depth - 1);
	right(depth - 1);
}

__attribute__((noinline)) static void left(int depth)
{
	down(depth);
	__asm__ volatile(""); /* not a tail call */
}

__attribute__((noinline)) static void right(int depth)
{
	down(depth);
	__asm__ volatile("");
}

int main(int argc, char **argv)
{
	down(argc > 1 ? atoi(argv[1]) : 4);
	(void)!write(1, "ready\n", 6);
	struct pollfd in = {.fd = 0, .events = POLLIN};
	while (poll(&in, 1, 1) == 0) {
		for (int i = 0; i < 50; i++) {
			void *volatile p = malloc(20000);
			free(p);
		}
	}
	(void)!write(1, "went on\n", 8);
	return 0;
}
