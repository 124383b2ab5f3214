/* fork.c: a forked child is another process: own folder, own sequence, own samples.
 *
 * The handlers run in the thread that forks, outside malloc, in any state of the program. The child's runs after
 * jemalloc's own (child handlers run in order of registration, and jemalloc registers at its first malloc), so mallctl may
 * be used. It drops the inherited samples (prof.reset) and notes what was live: the parent's dumps name that memory, and a
 * process tree adds up. What it costs is in docs/performance.md.
 *
 * A fork waits while jemalloc puts a dump together: its own handler does. That is done in memory (dump.c): a disk holds up no
 * fork. No lock is taken here.
 *
 * vfork and posix_spawn run no handlers and need none.
 */
#include "fork.h"

#include "account.h"
#include "alloc.h"
#include "clock.h"
#include "descriptors.h"
#include "dump.h"
#include "exit.h"
#include "giant.h"
#include "identity.h"
#include "inproc.h"
#include "out.h"
#include "pyframes.h"
#include "pyobjects.h"
#include "sample.h"
#include "triggers.h"

#include <pthread.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From 3.12 on os.fork() warns in a process with more than one thread, counted by the kernel. A program that has only its
 * main thread shall not get that warning for the clock: it is stopped over the fork, and the interpreter starts it again
 * after the count, at the main thread's next bytecode. Not while a disk hangs under it. In any other thread, or with other threads about, the warning is
 * there without us. (Modules/posixmodule.c, warn_about_fork_with_threads, called before PyOS_AfterFork_Parent.) */
#define WARNS_FROM_MINOR 12

static bool paused;

static void prepare(void)
{
	if (hw_py_minor() >= WARNS_FROM_MINOR && syscall(SYS_gettid) == getpid() && hw_threads() == 2)
		paused = hw_clock_pause(HW_CLOCK_PATIENCE);
}

static void parent(void)
{
	hw_descriptors_flush();
	if (paused) {
		paused = false;
		if (!hw_exit_call_soon(hw_clock_resume))
			hw_clock_resume();
	}
}

/* When a program's last thread ends, glibc ends the process (nptl/pthread_create.c, start_thread; csu/libc_start_call_main.h).
 * The clock is a thread too: with it, a child forked from a thread whose function returns, or a program whose main thread calls
 * pthread_exit, would stay for ever. The thread that could be the last takes the clock with it; for other threads the clock
 * looks each second (clock.c). */
static pthread_key_t last_thread;

static void thread_ends(void *unused)
{
	(void)unused;
	if (hw_threads() == 2)
		hw_clock_pause(UINT64_MAX);
	else
		hw_clock_stay();
}

static void watch_thread(void)
{
	pthread_setspecific(last_thread, &last_thread);
}

static void child(void)
{
	paused = false;
	hw_sample_forked();
	hw_identity_forked();
	hw_alloc_forget(&hw_identity.inherited_bytes, &hw_identity.inherited_objects);
	/* The function table stays as it is, and with it its two counters. */
	atomic_store(&hw_count.samples, 0);
	atomic_store(&hw_count.samples_python, 0);
	atomic_store(&hw_count.frames_failed, 0);
	atomic_store(&hw_count.native_failed, 0);
	atomic_store(&hw_count.stacks_cut, 0);
	atomic_store(&hw_count.captures_lost, 0);
	hw_objects_forked();
	hw_giant_forked();
	hw_triggers_forked();
	hw_account_forked();
	hw_dump_forked();
	hw_descriptors_forked();
	hw_exit_forked();
	hw_inproc_forked();
	watch_thread();
	hw_clock_forked();
}

void hw_fork_init(void)
{
	if (pthread_key_create(&last_thread, thread_ends) == 0)
		watch_thread();
	pthread_atfork(prepare, parent, child);
}
