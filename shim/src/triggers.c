/* triggers.c: what makes a dump due before its time: memory pressure, a jump of resident memory, a signal.
 *
 * Runs on the clock thread, each second: a few small reads of /proc and /sys, about 30 microseconds. The signal handler, which
 * exists only where HEAPWIRE_SIGNAL names a signal, sets a flag and wakes the clock: nothing more may be done in one.
 */
#include "triggers.h"

#include "clock.h"
#include "config.h"
#include "out.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---------------------------------------------------------------- the control group */

/* Folders of the process's memory controllers, innermost first: /proc/self/cgroup, `0::<path>` (v2) or `<n>:memory:<path>`
 * (v1). In a container the path may be the host's, while the mount shows the container's own group at its top: both count. */
static char groups[2][4352];
static bool group_v2;
static int ngroups = -1;

static void find_groups(void)
{
	static char text[8192];
	ngroups = 0;
	if (hw_read_file("/proc/self/cgroup", text, sizeof text) <= 0)
		return;
	for (char *p = text, *end; p && *p; p = end) {
		end = strchr(p, '\n');
		if (end)
			*end++ = 0;
		char *controllers = strchr(p, ':');
		char *path = controllers ? strchr(controllers + 1, ':') : NULL;
		if (!path)
			continue;
		*path++ = 0;
		bool v2 = !*++controllers;
		if (!v2 && strcmp(controllers, "memory"))
			continue;
		const char *root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
		char probe[4400];
		const char *const tails[] = {strcmp(path, "/") ? path : "", ""};
		int found = 0;
		for (int i = 0; i < 2; i++) {
			if (i && !strcmp(tails[0], ""))
				break;
			snprintf(groups[found], sizeof groups[0], "%s%.4000s", root, tails[i]);
			snprintf(probe, sizeof probe, "%s/%s", groups[found], v2 ? "memory.current" : "memory.usage_in_bytes");
			char number[64];
			if (hw_read_file(probe, number, sizeof number) > 0)
				found++;
		}
		if (found) {
			ngroups = found;
			group_v2 = v2;
			return;
		}
	}
}

static bool group_number(int group, const char *file, uint64_t *v)
{
	char path[4400], text[64];
	snprintf(path, sizeof path, "%s/%s", groups[group], file);
	if (hw_read_file(path, text, sizeof text) <= 0 || text[0] < '0' || text[0] > '9')
		return false; /* "max": no limit */
	*v = strtoull(text, NULL, 10);
	return *v < 1ull << 62; /* v1 says "no limit" by a number near 2^63 */
}

bool hw_cgroup_figures(uint64_t *current, uint64_t *max)
{
	if (ngroups < 0)
		find_groups();
	*max = 0;
	for (int i = 0; i < ngroups; i++) {
		if (!group_number(i, group_v2 ? "memory.current" : "memory.usage_in_bytes", current))
			continue;
		if (!group_number(i, group_v2 ? "memory.max" : "memory.limit_in_bytes", max))
			*max = 0;
		return true;
	}
	return false;
}

/* `inactive_file` (v2), `total_inactive_file` (v1) of memory.stat: pages the kernel gives up before it kills anybody, which
 * Kubernetes leaves out of the working set too. */
static uint64_t inactive_file(void)
{
	static char text[16384];
	char path[4400];
	snprintf(path, sizeof path, "%s/memory.stat", groups[0]);
	if (hw_read_file(path, text, sizeof text) <= 0)
		return 0;
	const char *key = group_v2 ? "\ninactive_file " : "\ntotal_inactive_file ";
	const char *p = strstr(text, key);
	return p ? strtoull(p + strlen(key), NULL, 10) : 0;
}

/* What counts against the limit, inactive file pages left out; false without a limit. */
static bool group_usage(uint64_t *used, uint64_t *limit)
{
	if (!hw_cgroup_figures(used, limit) || !*limit)
		return false;
	/* The file cache is asked for only when it can matter. */
	if (*used > *limit / 2) {
		uint64_t file = inactive_file();
		*used -= file < *used ? file : *used;
	}
	return true;
}

/* ---------------------------------------------------------------- pressure */

static unsigned level;  /* thresholds of HEAPWIRE_PRESSURE that usage is above, as far as a dump told of them */
static bool stalled;    /* the same for HEAPWIRE_PSI */

/* Falls back once usage is this far below a threshold, so that usage around it is one crossing. */
#define HYSTERESIS 5u

static const char *pressure(char *why, size_t cap)
{
	uint64_t used, limit;
	if (!hw_config.npressure || !group_usage(&used, &limit))
		return NULL;
	unsigned percent = (unsigned)((double)used * 100 / (double)limit);
	while (level && percent + HYSTERESIS < hw_config.pressure[level - 1])
		level--;
	if (level == hw_config.npressure || percent < hw_config.pressure[level])
		return NULL;
	while (level < hw_config.npressure && percent >= hw_config.pressure[level])
		level++;
	snprintf(why, cap, "cgroup %u%% of %llu", percent, (unsigned long long)limit);
	return "pressure";
}

/* `some avg10=12.34 …`: share of the last ten seconds in which at least one task waited for memory
 * (Documentation/accounting/psi.rst). */
static const char *stall(char *why, size_t cap)
{
	char path[4400], text[256];
	if (!hw_config.psi_percent)
		return NULL;
	if (ngroups > 0 && group_v2)
		snprintf(path, sizeof path, "%s/memory.pressure", groups[0]);
	else
		strcpy(path, "/proc/pressure/memory");
	const char *p = hw_read_file(path, text, sizeof text) > 0 ? strstr(text, "some avg10=") : NULL;
	if (!p)
		return NULL;
	unsigned avg = (unsigned)strtoul(p + strlen("some avg10="), NULL, 10);
	if (stalled && avg < hw_config.psi_percent / 2)
		stalled = false;
	if (stalled || avg < hw_config.psi_percent)
		return NULL;
	stalled = true;
	snprintf(why, cap, "stalled for memory %u%% of ten seconds", avg);
	return "pressure";
}

/* ---------------------------------------------------------------- a jump */

static uint64_t rss_at_dump; /* 0: not measured yet */
static uint64_t jump_gap_ns, jump_last_ns;

/* Below this growth a share of a small process is no news. */
#define JUMP_FLOOR (64ull << 20)

static uint64_t resident(void)
{
	char text[128];
	if (hw_read_file("/proc/self/statm", text, sizeof text) <= 0)
		return 0;
	const char *p = strchr(text, ' '); /* size, resident, … in pages */
	return p ? strtoull(p + 1, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE) : 0;
}

static uint64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

/* A program that loads for minutes jumps all the time: each such dump doubles the time to the next, up to the interval. */
static const char *jump(char *why, size_t cap)
{
	uint64_t rss = resident();
	if (!rss)
		return NULL;
	if (!rss_at_dump) {
		rss_at_dump = rss;
		return NULL;
	}
	uint64_t grown = rss > rss_at_dump ? rss - rss_at_dump : 0;
	bool share = hw_config.jump_percent && grown >= JUMP_FLOOR && grown >= rss_at_dump / 100 * hw_config.jump_percent;
	bool size = hw_config.jump_bytes && grown >= hw_config.jump_bytes;
	if (!share && !size)
		return NULL;
	uint64_t now = now_ns(), longest = hw_config.interval_ns ? hw_config.interval_ns : 60000000000ull;
	if (jump_last_ns && now - jump_last_ns < jump_gap_ns)
		return NULL;
	if (!jump_last_ns || now - jump_last_ns > 2 * longest)
		jump_gap_ns = hw_config.gap_ns;
	else
		jump_gap_ns = jump_gap_ns * 2 < longest ? jump_gap_ns * 2 : longest;
	jump_last_ns = now;
	snprintf(why, cap, "resident memory up by %llu to %llu", (unsigned long long)grown, (unsigned long long)rss);
	return "jump";
}

const char *hw_triggers_look(char *why, size_t cap)
{
	const char *reason = pressure(why, cap);
	if (!reason)
		reason = stall(why, cap);
	if (!reason)
		reason = jump(why, cap);
	return reason;
}

void hw_triggers_dumped(void)
{
	rss_at_dump = resident();
}

void hw_triggers_forked(void)
{
	rss_at_dump = 0;
	jump_last_ns = 0;
	level = 0;
	stalled = false;
	ngroups = -1;
}

/* ---------------------------------------------------------------- the signal */

static _Atomic bool signalled;

static void on_signal(int sig)
{
	(void)sig;
	int keep = errno;
	atomic_store(&signalled, true);
	hw_clock_wake();
	errno = keep;
}

void hw_triggers_signal_init(void)
{
	if (!hw_config.signal)
		return;
	struct sigaction old, mine = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
	sigemptyset(&mine.sa_mask);
	if (sigaction(hw_config.signal, NULL, &old) || old.sa_handler != SIG_DFL || sigaction(hw_config.signal, &mine, NULL))
		hw_say("HEAPWIRE_SIGNAL=%d: the signal cannot be taken; it sets off no dump", hw_config.signal);
}

bool hw_triggers_signalled(void)
{
	return atomic_exchange(&signalled, false);
}
