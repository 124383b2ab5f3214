/* Prints its arguments and its environment, in order, and exits with the status that its last argument names. Built with
 * each C library and sanitizer that the tests are about.
 */
#include <stdio.h>
#include <stdlib.h>

extern char **environ;

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		printf("argument %s\n", argv[i]);
	for (char **e = environ; *e; e++)
		printf("%s\n", *e);
	return argc > 1 ? atoi(argv[argc - 1]) : 0;
}
