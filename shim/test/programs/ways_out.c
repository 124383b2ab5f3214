/* Leaves in the way its argument names, after 64 allocations of 1 MiB. vfork: a child that shares the parent's memory calls
 * _exit first; the parent must not notice.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_alarm(int sig)
{
	(void)sig;
	_exit(5);
}

int main(int argc, char **argv)
{
	const char *way = argc > 1 ? argv[1] : "return";
	for (int i = 0; i < 64; i++)
		memset(malloc(1 << 20), 1, 4096);
	if (!strcmp(way, "exit"))
		exit(5);
	if (!strcmp(way, "_exit"))
		_exit(5);
	if (!strcmp(way, "_Exit"))
		_Exit(5);
	if (!strcmp(way, "quick_exit"))
		quick_exit(5);
	if (!strcmp(way, "signal")) {
		signal(SIGALRM, on_alarm);
		raise(SIGALRM);
	}
	if (!strcmp(way, "kill"))
		raise(SIGKILL);
	if (!strcmp(way, "vfork")) {
		pid_t p = vfork();
		if (p == 0)
			_exit(7);
		int st;
		waitpid(p, &st, 0);
		return WEXITSTATUS(st) == 7 ? 5 : 1;
	}
	return 5;
}
