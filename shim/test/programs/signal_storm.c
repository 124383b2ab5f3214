/* usage: signal_storm ROUNDS
 *
 * A timer of 1 ms whose handler allocates, against a thread that takes samples: directly through the test library's window,
 * so that the handler comes while the hook is at work and never while jemalloc is. Without the window the thread allocates.
 * A second thread allocates with the signal blocked. A round: 20 signals. Prints a byte a round.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

extern int heapwire_test_capture(char *, size_t) __attribute__((weak));
extern void naive_arm(void) __attribute__((weak));

static volatile sig_atomic_t signals, stop;
static char text[1 << 20];

static void on_signal(int sig)
{
	(void)sig;
	int keep = errno;
	for (size_t n = 16; n < 20000; n *= 3) {
		void *volatile p = malloc(n);
		free(p);
	}
	signals++;
	errno = keep;
}

static void *allocate(void *arg)
{
	(void)arg;
	while (!stop) {
		void *volatile p = malloc(2000);
		free(p);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	sigset_t alarm;
	pthread_t t;
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
	pthread_sigmask(SIG_BLOCK, &alarm, NULL);
	if (pthread_create(&t, NULL, allocate, NULL))
		return 1;
	pthread_sigmask(SIG_UNBLOCK, &alarm, NULL);
	signal(SIGALRM, on_signal);
	struct itimerval each = {{0, 1000}, {0, 1000}};
	if (naive_arm)
		naive_arm();
	setitimer(ITIMER_REAL, &each, NULL);
	for (int r = 0; r < rounds; r++) {
		while (signals < (r + 1) * 20) {
			errno = 77;
			if (heapwire_test_capture) {
				if (heapwire_test_capture(text, sizeof text) <= 0) {
					fprintf(stderr, "a capture without a stack\n");
					return 1;
				}
			} else {
				void *volatile p = malloc(3000);
				free(p);
			}
			if (errno != 77) {
				fprintf(stderr, "errno is %d\n", errno);
				return 1;
			}
		}
		(void)!write(1, ".", 1);
	}
	stop = 1;
	pthread_join(t, NULL);
	return 0;
}
