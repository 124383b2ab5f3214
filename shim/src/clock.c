/* clock.c: the one thread of the shim: it sleeps until a dump is due, or asked for, and takes it.
 *
 * Only in processes that are targets. All signals are blocked in it, so it never runs a handler of the program and never
 * takes a signal meant for it; its own allocations are no samples.
 *
 * Requests are two counters and a futex: no lock, so a fork at any instant leaves nothing behind, and a signal handler may
 * ask.
 */
#include "clock.h"

#include "alloc.h"
#include "config.h"
#include "dump.h"
#include "exit.h"
#include "identity.h"
#include "out.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What the thread calls needs about 24 KiB; glibc takes static TLS, which big programs have much of, from the same piece. */
#define STACK_BYTES (256u << 10)

static _Atomic uint32_t wanted;   /* exit dumps asked for */
static _Atomic uint32_t finished; /* those that were taken, or tried */
static _Atomic bool running, stopping;
static uint64_t due; /* monotonic time of the next interval dump */
static pthread_t thread;
static _Atomic int thread_id;

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* Sleeps while *word is `value`, at most ns nanoseconds. */
static void futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t ns)
{
	struct timespec t = {(time_t)(ns / 1000000000ull), (long)(ns % 1000000000ull)};
	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &t, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static void *clock_main(void *arg)
{
	(void)arg;
	atomic_store(&thread_id, (int)syscall(SYS_gettid));
	hw_alloc_hide_thread();
	hw_identity_read();
	uint64_t interval = hw_config.interval_ns;
	uint64_t arm_after = 5000000ull; /* until the interpreter is up: 5 ms, doubling to 1 s */
	uint32_t seen = atomic_load(&finished);
	while (!atomic_load(&stopping)) {
		uint64_t sleep = 3600ull * 1000000000ull, now = now_ns();
		if (due != UINT64_MAX)
			sleep = due > now ? min64(sleep, due - now) : 0;
		if (!hw_exit_armed())
			sleep = min64(sleep, arm_after);
		if (sleep && atomic_load(&wanted) == seen)
			futex_wait(&wanted, seen, sleep);
		if (atomic_load(&stopping))
			break;
		if (!hw_exit_armed()) {
			hw_exit_arm();
			arm_after = min64(arm_after * 2, 1000000000ull);
		}
		uint32_t w = atomic_load(&wanted);
		if (w != seen) {
			seen = w;
			hw_dump("exit");
			/* What follows is the interpreter taking itself apart: a later dump would show a heap that nobody asks
			 * for, as the newest one. */
			due = UINT64_MAX;
			atomic_store(&finished, w);
			futex_wake(&finished);
		} else if (due <= now_ns()) {
			hw_dump("interval");
			/* Not due + interval: after a suspend, or a dump that took longer, the missed ones are gone. */
			due = now_ns() + interval;
		}
	}
	return NULL;
}

static bool spawn(void)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_attr_t attr;
	if (pthread_attr_init(&attr))
		return false;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	int err = pthread_create(&thread, &attr, clock_main, NULL);
	if (!err)
		pthread_setname_np(thread, "heapwire");
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err == 0;
}

static void first_due(void)
{
	due = hw_config.interval_ns ? now_ns() + hw_config.interval_ns : UINT64_MAX;
}

void hw_clock_start(void)
{
	first_due();
	atomic_store(&running, spawn());
	if (!atomic_load(&running)) {
		hw_say("cannot start the clock thread: no dumps will be written");
	}
}

void hw_clock_pause(void)
{
	if (!atomic_exchange(&running, false))
		return;
	atomic_store(&stopping, true);
	/* Not only a wake-up: the thread may be on its way into futex_wait, which must then find another value. It takes no
	 * dump, since it looks at `stopping` first, and starts again from `finished`. */
	atomic_fetch_add(&wanted, 1);
	futex_wake(&wanted);
	pthread_join(thread, NULL);
	atomic_store(&finished, atomic_load(&wanted));
	atomic_store(&stopping, false);
	/* The join returns before the kernel has taken the thread off the process's count. */
	for (int i = 0; i < 10000 && syscall(SYS_tgkill, getpid(), atomic_load(&thread_id), 0) == 0; i++)
		sched_yield();
}

void hw_clock_resume(void)
{
	if (!atomic_load(&running))
		atomic_store(&running, spawn());
}

void hw_clock_forked(void)
{
	first_due();
	atomic_store(&stopping, false);
	atomic_store(&wanted, 0);
	atomic_store(&finished, 0);
	atomic_store(&running, spawn()); /* without words: the parent's stderr is not the place for a child's thread limit */
}

bool hw_clock_request_exit_dump(unsigned timeout_ms)
{
	hw_clock_resume(); /* paused by a fork, and nothing has resumed it yet */
	if (!atomic_load(&running))
		return false;
	uint32_t mine = atomic_fetch_add(&wanted, 1) + 1;
	futex_wake(&wanted);
	uint64_t end = now_ns() + timeout_ms * 1000000ull;
	for (;;) {
		uint32_t f = atomic_load(&finished);
		if ((int32_t)(f - mine) >= 0)
			return true;
		uint64_t now = now_ns();
		if (now >= end)
			return false;
		futex_wait(&finished, f, end - now);
	}
}
