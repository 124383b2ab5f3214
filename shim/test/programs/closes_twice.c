/* usage: closes_twice ROUNDS
 *
 * A round: closes what it has opened, and once more, which must find nothing; closes a whole range in which it has nothing; and then
 * what it opens must stay open. Right, if untidy, in a program with one thread. Prints a byte a round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern void naive_arm(void) __attribute__((weak));

static void wrong(const char *what)
{
	(void)!write(2, what, strlen(what));
	_exit(1);
}

int main(int argc, char **argv)
{
	if (argc != 2)
		return 2;
	if (naive_arm)
		naive_arm();
	for (int rounds = atoi(argv[1]); rounds > 0; rounds--) {
		for (int i = 0; i < 5000; i++) {
			int p[2];
			char c = 'x';
			int fd = open("/dev/null", O_WRONLY);
			if (fd < 0 || close(fd))
				wrong("what was opened is not open\n");
			if (close(fd) == 0 || errno != EBADF)
				wrong("a number that is free is somebody else's\n");
			if (i % 100 == 0)
				for (fd = 3; fd < 64; fd++)
					close(fd);
			if (pipe(p) || write(p[1], &c, 1) != 1 || read(p[0], &c, 1) != 1 || close(p[0]) || close(p[1]))
				wrong("a pipe was closed by somebody else\n");
		}
		free(malloc(100000)); /* something to dump */
		(void)!write(1, ".", 1);
	}
	return 0;
}
