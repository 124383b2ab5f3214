/* Programs that end because their last thread does. argv[1]: main: main calls pthread_exit, alone; thread: main calls
 * pthread_exit while a thread goes on for a moment; fork: a thread forks, and in the child its function returns.
 * What they print is still in stdio's buffer then.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *moment(void *arg)
{
	(void)arg;
	usleep(50000);
	memset(malloc(1 << 20), 1, 1 << 20);
	printf("the thread's last words\n");
	return NULL;
}

static void *forks(void *arg)
{
	(void)arg;
	pid_t p = fork();
	if (p == 0) {
		memset(malloc(1 << 20), 1, 1 << 20);
		printf("the child's last words\n");
		return NULL;
	}
	int st = -1;
	waitpid(p, &st, 0);
	_exit(WIFEXITED(st) ? WEXITSTATUS(st) + 3 : 1);
}

int main(int argc, char **argv)
{
	pthread_t t;
	for (int i = 0; i < 16; i++)
		memset(malloc(1 << 20), 1, 4096);
	if (argc > 1 && !strcmp(argv[1], "fork")) {
		pthread_create(&t, NULL, forks, NULL);
		pthread_join(t, NULL);
		return 1;
	}
	if (argc > 1 && !strcmp(argv[1], "thread"))
		pthread_create(&t, NULL, moment, NULL);
	printf("main's last words\n");
	pthread_exit(NULL);
}
