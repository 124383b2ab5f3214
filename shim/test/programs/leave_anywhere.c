/* usage: leave_anywhere ROUNDS
 *
 * A round: a child in which three threads allocate leaves by _exit from a signal handler, at whatever instant the timer comes.
 * Prints a byte a round; exit status 1 when a child's status is another than it left with.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_alarm(int sig)
{
	(void)sig;
	_exit(5);
}

static void *allocate(void *arg)
{
	for (unsigned i = (unsigned)(size_t)arg;; i++) {
		void *volatile p = malloc(i % 3000 + 1);
		free(p);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	unsigned random = (unsigned)getpid();
	signal(SIGALRM, on_alarm);
	for (int r = 0; r < rounds; r++) {
		random = random * 1103515245 + 12345;
		pid_t child = fork();
		if (child == 0) {
			struct itimerval when = {.it_value.tv_usec = 200 + random / 65536 % 5000};
			pthread_t t;
			for (size_t i = 0; i < 2; i++)
				pthread_create(&t, NULL, allocate, (void *)(i * 1000));
			setitimer(ITIMER_REAL, &when, NULL);
			allocate(NULL);
		}
		int status = 0;
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5) {
			fprintf(stderr, "a child left with status %x\n", status);
			return 1;
		}
		(void)!write(1, ".", 1);
	}
	return 0;
}
