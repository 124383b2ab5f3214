/* inproc.c: the exporter inside the process: libheapwire_inproc.so (shim/inproc), which lies beside this library.
 *
 * Mapped in the constructor, because of the loader's locks. dlopen takes one for all it does and another for a part of it; a
 * callback of dl_iterate_phdr that calls dlopen, as threadpoolctl's does, takes them in the other order; who holds one may
 * wait for the GIL, and whoever forks in the middle leaves the child half a library. A dlopen at a later time would wait in
 * the midst of that, with one of the locks. In the constructor there is nobody to wait for. Mapping starts nothing: no
 * thread, no handler (shim/inproc/doc.go).
 *
 * Started by a thread of its own, once, when the process has dumped, or has lived for a while: the clock never waits for it.
 * That thread has all signals blocked but the faults, which the program's handler may want to report, and so have those that
 * the library starts. They all have the name "heapwire".
 *
 * Only this process: a forked child has no thread of it, and starts none.
 */
#include "inproc.h"

#include "alloc.h"
#include "config.h"
#include "descriptors.h"
#include "futex.h"
#include "identity.h"
#include "out.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libheapwire_inproc.so"
#define STACK_BYTES (1u << 20)
#define DELIVER_MS 900
#define END_NS 1000000000ull

/* shim/inproc/home.h */
static int (*start)(const char *spool, void (*say)(const char *line), int shared, void (*hide)(void));
static void (*stop)(int timeout_ms);

static _Atomic bool due;       /* mapped, not started */
static _Atomic bool begun;     /* the thread is there */
static _Atomic uint32_t asked; /* to stop */
static _Atomic uint32_t over;  /* stopped, or never started */

/* What makes a sink for profiles or their figures (exporter/sinks). Whether it is a good one is told when it is made. */
static bool sink_named(void)
{
	static const char *const names[] = {"OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT",
					    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "PYROSCOPE_SERVER_ADDRESS"};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		const char *v = secure_getenv(names[i]);
		if (v && *v)
			return true;
	}
	return false;
}

static bool path_of_library(char *path, size_t size)
{
	Dl_info self;
	if (!dladdr((void *)&due, &self) || !self.dli_fname)
		return false;
	const char *slash = strrchr(self.dli_fname, '/');
	int folder = slash ? (int)(slash - self.dli_fname) + 1 : 0;
	int n = snprintf(path, size, "%.*s%s", folder, self.dli_fname, LIBRARY);
	return n > 0 && (size_t)n < size;
}

void hw_inproc_init(void)
{
	char path[4096];
	bool wanted = hw_config.export == HW_INPROC_ALWAYS;
	if (hw_config.export == HW_INPROC_OFF)
		return;
	if (!sink_named()) {
		if (wanted)
			hw_say("HEAPWIRE_EXPORT=inproc, but nothing says where to: set OTEL_EXPORTER_OTLP_ENDPOINT or "
			       "PYROSCOPE_SERVER_ADDRESS. Dumps stay in the spool.");
		return;
	}
	if (!path_of_library(path, sizeof path))
		return;
	/* Nobody has asked for it by name, and it is not installed: the dumps wait for another reader. */
	if (!wanted && access(path, F_OK))
		return;
	void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (library) {
		*(void **)&start = dlsym(library, "heapwire_inproc_start");
		*(void **)&stop = dlsym(library, "heapwire_inproc_stop");
	}
	if (!start || !stop) {
		const char *why = dlerror();
		hw_say("not exporting: %s. Dumps stay in the spool.", why ? why : "no exporter in " LIBRARY);
		return;
	}
	atomic_store(&due, true);
}

static bool own_descriptors; /* all threads of the exporter's are in the table of the one that started it, the clock */

static void say(const char *line)
{
	hw_descriptors_say_left(own_descriptors);
	hw_say("%s", line);
}

static void *inproc_main(void *arg)
{
	(void)arg;
	hw_alloc_hide_thread();
	if (start(hw_config.spool, say, !own_descriptors, hw_alloc_hide_thread) == 0) {
		while (!atomic_load(&asked))
			hw_futex_wait(&asked, 0, UINT64_MAX / 2);
		stop(DELIVER_MS);
	}
	atomic_store(&over, 1);
	hw_futex_wake(&over);
	return NULL;
}

bool hw_inproc_due(void)
{
	return atomic_load(&due);
}

void hw_inproc_begin(void)
{
	if (!atomic_exchange(&due, false))
		return;
	own_descriptors = hw_descriptors_left();
	sigset_t mask, old;
	sigfillset(&mask);
	static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
	for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
		sigdelset(&mask, faults[i]);
	pthread_t thread;
	pthread_attr_t attr;
	int err = pthread_attr_init(&attr);
	if (!err) {
		pthread_attr_setstacksize(&attr, STACK_BYTES);
		pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
		pthread_sigmask(SIG_SETMASK, &mask, &old);
		err = pthread_create(&thread, &attr, inproc_main, NULL);
		pthread_sigmask(SIG_SETMASK, &old, NULL);
		pthread_attr_destroy(&attr);
	}
	if (err)
		hw_say("not exporting: %s. Dumps stay in the spool.", hw_errno_text(err));
	atomic_store(&begun, !err);
}

void hw_inproc_end(void)
{
	if (!atomic_load(&begun) || hw_identity.pid != (int)getpid())
		return;
	int keep = errno;
	atomic_store(&asked, 1);
	hw_futex_wake(&asked);
	for (uint64_t now = hw_monotonic_ns(), end = now + END_NS; !atomic_load(&over) && now < end; now = hw_monotonic_ns())
		hw_futex_wait(&over, 0, end - now);
	errno = keep;
}

void hw_inproc_forked(void)
{
	atomic_store(&due, false);
	atomic_store(&begun, false);
}
