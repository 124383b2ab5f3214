/* clock.c: the one thread of the shim: it sleeps until a dump is due, or asked for, and takes it.
 *
 * Only in processes that are targets. All signals are blocked in it, so it never runs a handler of the program and never
 * takes a signal meant for it; its own allocations are no samples. It has a table of descriptors of its own (descriptors.c).
 *
 * Requests are counters and a futex: no lock, so a fork at any instant leaves nothing behind, and a signal handler may
 * ask.
 */
#include "clock.h"

#include "alloc.h"
#include "config.h"
#include "descriptors.h"
#include "dump.h"
#include "exit.h"
#include "futex.h"
#include "giant.h"
#include "identity.h"
#include "inproc.h"
#include "native.h"
#include "out.h"
#include "pyframes.h"
#include "rate.h"
#include "triggers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What the thread calls needs about 24 KiB; glibc takes static TLS, which big programs have much of, from the same piece. */
#define STACK_BYTES (256u << 10)

static _Atomic uint32_t woken;    /* the futex word: raised by whoever wants the thread to look */
static _Atomic uint32_t wanted;   /* dumps asked for by somebody who waits */
static _Atomic uint32_t finished; /* those that were taken, or tried */
static _Atomic int last_result;   /* errno of the last one */
static _Atomic uint32_t exits;    /* those among the wanted that are exit dumps */
static _Atomic bool started; /* the process is profiled */
static _Atomic uint32_t life; /* a futex word: of the thread that is there */
enum { GOES_ON, ASKED_TO_END, ENDED };
static _Atomic int running;
enum { NO, YES, CHANGING };
static _Atomic bool stays; /* in the process's table of descriptors */
static uint64_t due; /* monotonic time of the next interval dump */
static pthread_t thread;
static _Atomic int thread_id;

#define SECOND 1000000000ull
/* A process that ends sooner, and before its first interval dump, is not worth an exporter: its dump waits in the spool. */
#define EXPORT_AFTER (5 * SECOND)

static uint64_t min64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* ---------------------------------------------------------------- what is due */

static uint64_t last_set_off; /* monotonic time of the last dump that something but the clock set off */
static uint64_t last_samples;
static uint64_t last_taken; /* monotonic time */

/* Nothing was sampled since the last dump and the heap has its size: the next dump would say the same. One comes in ten
 * intervals all the same, so that nobody takes silence for death. */
#define QUIET_INTERVALS 10

static bool nothing_changed(void)
{
	struct hw_alloc_stats a;
	if (HW_GET(samples) != last_samples || !hw_alloc_stats(&a))
		return false;
	uint64_t then = hw_dump_allocated();
	uint64_t lo = a.allocated < then ? a.allocated : then;
	uint64_t hi = a.allocated < then ? then : a.allocated;
	return (hi - lo) * 100 <= hi && hw_monotonic_ns() - last_taken < QUIET_INTERVALS * hw_config.interval_ns;
}

static int take(const char *reason, const char *why)
{
	last_samples = HW_GET(samples);
	int err = hw_dump(reason, why);
	/* Nothing of the allocator's is asked for from here on: who waits may stand inside it, with a lock (exit.c). */
	last_taken = hw_monotonic_ns();
	hw_triggers_dumped();
	if (!err && strcmp(reason, "exit"))
		hw_inproc_begin();
	return err;
}

/* The next interval dump. After a suspend, or a dump that took longer, the missed ones are gone. A dump that grows expensive
 * comes less often: dumping takes at most a hundredth of the time. */
static void next_due(void)
{
	uint64_t cost = hw_dump_cost_ns() * 100;
	due = hw_monotonic_ns() + (cost > hw_config.interval_ns ? cost : hw_config.interval_ns);
}

static void set_off(const char *reason, const char *why)
{
	take(reason, why);
	last_set_off = hw_monotonic_ns();
}

static bool gap_over(void)
{
	return !last_set_off || hw_monotonic_ns() - last_set_off >= hw_config.gap_ns;
}

/* What the old interval knows is in a dump before it is forgotten. */
static void sampling_rate(void)
{
	char why[160];
	unsigned lg = hw_rate_look();
	if (!lg)
		return;
	snprintf(why, sizeof why, "sampling interval becomes %llu", 1ull << lg);
	take("interval", why);
	hw_rate_change(lg);
}

static void look(bool second_over)
{
	char why[160];
	const char *reason;
	uint64_t largest;
	if (hw_triggers_signalled())
		set_off("signal", "");
	else if (gap_over() && hw_giant_pending(&largest)) {
		snprintf(why, sizeof why, "request of %llu", (unsigned long long)largest);
		set_off("giant", why);
	} else if (second_over && gap_over() && (reason = hw_triggers_look(why, sizeof why)))
		set_off(reason, why);
	else if (due <= hw_monotonic_ns()) {
		if (!nothing_changed())
			take("interval", "");
		next_due();
	}
}

static uint64_t time_to_sleep(uint64_t next_second, uint64_t arm_after)
{
	uint64_t now = hw_monotonic_ns(), at = next_second;
	at = min64(at, due);
	uint64_t largest;
	if (hw_giant_pending(&largest))
		at = min64(at, last_set_off ? last_set_off + hw_config.gap_ns : 0);
	uint64_t sleep = at > now ? at - now : 0;
	return hw_exit_armed() ? sleep : min64(sleep, arm_after);
}

/* What the program called the dump that it asks for. One at a time: of several that ask at once, and have one dump, the
 * first is named. */
static char asked_why[96];
static _Atomic int why_state; /* 0 free, 1 being written, 2 there */

void hw_clock_why(const char *why)
{
	int nobody = 0;
	if (!*why || !atomic_compare_exchange_strong(&why_state, &nobody, 1))
		return;
	size_t n = 0, left = strlen(why);
	for (const unsigned char *p = (const unsigned char *)why; left;) {
		size_t len = hw_utf8_len(p, left);
		if (n + (len ? len : 1) >= sizeof asked_why)
			break;
		if (!len)
			asked_why[n++] = '?';
		else if (*p < 0x20 || *p == 0x7f)
			asked_why[n++] = ' '; /* a line is a line */
		else
			for (size_t i = 0; i < len; i++)
				asked_why[n++] = (char)p[i];
		p += len ? len : 1;
		left -= len ? len : 1;
	}
	asked_why[n] = 0;
	atomic_store(&why_state, 2);
}

static void take_why(char *to)
{
	bool there = atomic_load(&why_state) == 2;
	strcpy(to, there ? asked_why : "");
	if (there)
		atomic_store(&why_state, 0);
}

static bool ends(void)
{
	uint32_t asked = ASKED_TO_END;
	if (!atomic_compare_exchange_strong(&life, &asked, ENDED))
		return false;
	hw_futex_wake(&life);
	return true;
}

static void *clock_main(void *arg)
{
	(void)arg;
	prctl(PR_SET_NAME, HW_THREAD_NAME); /* pthread_setname_np would open a file for another thread */
	hw_alloc_hide_thread();
	if (!atomic_load(&stays))
		hw_descriptors_leave();
	atomic_store(&thread_id, (int)syscall(SYS_gettid));
	hw_identity_read();
	uint64_t arm_after = 5000000ull; /* until the interpreter is up: 5 ms, doubling to 1 s */
	uint64_t next_second = hw_monotonic_ns() + SECOND, export_at = hw_monotonic_ns() + EXPORT_AFTER;
	uint32_t seen = atomic_load(&finished);
	while (!ends()) {
		uint32_t word = atomic_load(&woken);
		uint64_t sleep = time_to_sleep(next_second, arm_after);
		if (sleep && atomic_load(&wanted) == seen && atomic_load(&life) == GOES_ON)
			hw_futex_wait(&woken, word, sleep);
		if (ends())
			break;
		if (!hw_exit_armed()) {
			hw_exit_arm();
			arm_after = min64(arm_after * 2, SECOND);
		}
		bool second_over = hw_monotonic_ns() >= next_second;
		if (second_over) {
			next_second = hw_monotonic_ns() + SECOND;
			hw_py_forget_pages();
			/* Nobody is left but the first thread, which has ended, and ours: what glibc does in the last thread. */
			if (hw_leader_ended() && hw_only_ours_left()) {
				hw_exit_last_thread();
				exit(0);
			}
			sampling_rate();
			if (hw_native_uses_list())
				hw_native_refresh();
			if (hw_inproc_due() && hw_monotonic_ns() >= export_at && !hw_dump_folder())
				hw_inproc_begin();
		}
		uint32_t w = atomic_load(&wanted);
		if (w == seen) {
			look(second_over);
			continue;
		}
		seen = w;
		bool leaving = atomic_exchange(&exits, 0);
		char why[sizeof asked_why];
		take_why(why);
		atomic_store(&last_result, take(leaving ? "exit" : "api", why));
		/* What follows an exit dump is the interpreter taking itself apart: a later dump would show a heap that nobody
		 * asks for, as the newest one. */
		if (leaving)
			due = next_second = UINT64_MAX;
		atomic_store(&finished, w);
		hw_futex_wake(&finished);
	}
	return NULL;
}

/* YES or NO. */
static int spawn(void)
{
	sigset_t all, old;
	sigfillset(&all);
	pthread_attr_t attr;
	if (pthread_attr_init(&attr))
		return false;
	pthread_attr_setstacksize(&attr, STACK_BYTES);
	pthread_sigmask(SIG_BLOCK, &all, &old);
	int err = pthread_create(&thread, &attr, clock_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return err ? NO : YES;
}

/* Asks the thread to end, and waits for it, but not for the disk: false if it goes on. */
static bool join(uint64_t patience)
{
	uint64_t now = hw_monotonic_ns(), until = patience < UINT64_MAX - now ? now + patience : UINT64_MAX;
	atomic_store(&life, ASKED_TO_END);
	hw_clock_wake();
	while (atomic_load(&life) != ENDED && (now = hw_monotonic_ns()) < until)
		hw_futex_wait(&life, ASKED_TO_END, min64(until - now, SECOND));
	uint32_t asked = ASKED_TO_END;
	if (atomic_compare_exchange_strong(&life, &asked, GOES_ON))
		return false;
	pthread_join(thread, NULL);
	atomic_store(&life, GOES_ON);
	return true;
}

static void first_due(void)
{
	due = hw_config.interval_ns ? hw_monotonic_ns() + hw_config.interval_ns : UINT64_MAX;
}

void hw_clock_start(void)
{
	hw_rate_begin();
	first_due();
	atomic_store(&started, true);
	atomic_store(&running, spawn());
	if (atomic_load(&running) == NO)
		hw_say("cannot start the clock thread: no dumps will be written");
}

bool hw_clock_started(void)
{
	return atomic_load(&started);
}

bool hw_clock_pause(uint64_t patience)
{
	int yes = YES;
	if (!atomic_compare_exchange_strong(&running, &yes, CHANGING))
		return false;
	if (!join(patience)) {
		atomic_store(&running, YES);
		return false;
	}
	atomic_store(&running, NO);
	/* The join returns before the kernel has taken the thread off the process's count. */
	for (int i = 0; i < 10000 && syscall(SYS_tgkill, getpid(), atomic_load(&thread_id), 0) == 0; i++)
		sched_yield();
	return true;
}

void hw_clock_resume(void)
{
	int no = NO;
	if (atomic_load(&started) && atomic_compare_exchange_strong(&running, &no, CHANGING))
		atomic_store(&running, spawn());
}

/* The new thread is in the table of the one that makes it. */
void hw_clock_stay(void)
{
	if (atomic_exchange(&stays, true))
		return;
	int yes = YES;
	while (!atomic_compare_exchange_strong(&running, &yes, CHANGING)) {
		if (yes == NO)
			return;
		sched_yield(); /* somebody is starting it */
		yes = YES;
	}
	atomic_store(&running, join(HW_CLOCK_PATIENCE) ? spawn() : YES);
}

void hw_clock_forked(void)
{
	hw_rate_begin();
	first_due();
	last_set_off = 0;
	atomic_store(&life, GOES_ON);
	atomic_store(&stays, false);
	atomic_store(&exits, 0);
	atomic_store(&why_state, 0);
	atomic_store(&wanted, 0);
	atomic_store(&finished, 0);
	atomic_store(&running, spawn()); /* without words: the parent's stderr is not the place for a child's thread limit */
}

void hw_clock_wake(void)
{
	atomic_fetch_add(&woken, 1);
	hw_futex_wake(&woken);
}

int hw_clock_request(bool leaving, unsigned timeout_ms, unsigned allocator_ms)
{
	hw_clock_resume(); /* paused by a fork, and nothing has resumed it yet */
	if (atomic_load(&running) == NO)
		return ESRCH;
	if (leaving)
		atomic_fetch_add(&exits, 1);
	hw_dump_expected();
	uint32_t mine = atomic_fetch_add(&wanted, 1) + 1;
	hw_clock_wake();
	uint64_t begin = hw_monotonic_ns(), end = begin + timeout_ms * 1000000ull, allocator_end = begin + allocator_ms * 1000000ull;
	for (;;) {
		uint32_t f = atomic_load(&finished);
		if ((int32_t)(f - mine) >= 0)
			return atomic_load(&last_result);
		uint64_t now = hw_monotonic_ns();
		bool past = hw_dump_past_allocator();
		if (now >= end || (!past && now >= allocator_end))
			return ETIMEDOUT;
		hw_futex_wait(&finished, f, (past ? end : min64(end, allocator_end)) - now);
	}
}
