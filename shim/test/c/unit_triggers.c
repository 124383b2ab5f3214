/* What sets off a dump, on a machine made of words. */
#include "../../src/triggers.c"

#include "check.h"

#include <stdarg.h>

struct hw_config hw_config;

static int woken, said;

void hw_clock_wake(void)
{
	woken++;
}

void hw_say(const char *fmt, ...)
{
	(void)fmt;
	said++;
}

/* The files there are. */
static struct {
	char path[128], text[512];
} files[16];
static int nfiles;

static void file(const char *path, const char *fmt, ...)
{
	int i = 0;
	while (i < nfiles && strcmp(files[i].path, path))
		i++;
	if (i == nfiles)
		nfiles++;
	snprintf(files[i].path, sizeof files[i].path, "%s", path);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(files[i].text, sizeof files[i].text, fmt, ap);
	va_end(ap);
}

long hw_read_file(const char *path, char *buf, size_t cap)
{
	for (int i = 0; i < nfiles; i++) {
		if (!strcmp(files[i].path, path)) {
			snprintf(buf, cap, "%s", files[i].text);
			return (long)strlen(buf);
		}
	}
	return -1;
}

static void new_machine(void)
{
	nfiles = 0;
	hw_triggers_forked();
	hw_config = (struct hw_config){.pressure = {80, 90, 95}, .npressure = 3, .psi_percent = 40, .jump_percent = 20,
				       .jump_bytes = 1ull << 30, .gap_ns = 1, .interval_ns = 60000000000ull};
}

static char why[160];

static bool is(const char *reason, const char *text)
{
	const char *r = hw_triggers_look(why, sizeof why);
	return reason ? r && !strcmp(r, reason) && strstr(why, text) : !r;
}

#define MiB (1ull << 20)

static void v2_usage(unsigned long long used_mib, unsigned long long file_mib)
{
	file("/sys/fs/cgroup/pod/memory.current", "%llu\n", used_mib * MiB);
	file("/sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file %llu\nactive_file 5\n", file_mib * MiB);
}

static void rss(unsigned long long mib)
{
	file("/proc/self/statm", "999999 %llu 3 4 0 5 0\n", mib * 256);
}

int main(void)
{
	if (sysconf(_SC_PAGESIZE) != 4096)
		abort();
	uint64_t current, max;

	new_machine();
	CHECK(!hw_cgroup_figures(&current, &max) && is(NULL, ""), "a machine without anything sets nothing off");

	file("/proc/self/cgroup", "0::/pod\n");
	file("/sys/fs/cgroup/pod/memory.max", "max\n");
	v2_usage(900, 0);
	hw_triggers_forked();
	CHECK(hw_cgroup_figures(&current, &max) && current == 900 * MiB && max == 0 && is(NULL, ""), "without a limit there is no pressure");

	file("/sys/fs/cgroup/pod/memory.max", "%llu\n", 1000 * MiB);
	CHECK(is("pressure", "cgroup 90% of 1048576000"), "90 %% of the limit: %s", why);
	CHECK(is(NULL, ""), "is told once");
	v2_usage(940, 0);
	CHECK(is(NULL, ""), "and not again below the next level");
	v2_usage(960, 0);
	CHECK(is("pressure", "cgroup 96%"), "but above it");
	v2_usage(970, 0);
	CHECK(is(NULL, ""), "above all levels there is nothing more to say");
	v2_usage(910, 0);
	CHECK(is(NULL, ""), "a little less is no recovery");
	v2_usage(960, 0);
	CHECK(is(NULL, ""), "so the same level is not told again");
	v2_usage(700, 0);
	CHECK(is(NULL, ""), "a real recovery");
	v2_usage(820, 0);
	CHECK(is("pressure", "cgroup 82%"), "makes the lowest level count again");
	new_machine();
	file("/proc/self/cgroup", "0::/pod\n");
	file("/sys/fs/cgroup/pod/memory.max", "%llu\n", 1000 * MiB);
	v2_usage(950, 400);
	CHECK(is(NULL, ""), "inactive file pages are not pressure");
	hw_config.npressure = 0;
	v2_usage(999, 0);
	CHECK(is(NULL, ""), "without levels there is none");

	new_machine();
	file("/proc/self/cgroup", "5:cpu:/x\n4:memory:/job/7\n0::/\n");
	file("/sys/fs/cgroup/memory/job/7/memory.usage_in_bytes", "%llu\n", 850 * MiB);
	file("/sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "%llu\n", 1000 * MiB);
	file("/sys/fs/cgroup/memory/job/7/memory.stat", "cache 1\ninactive_file 9\ntotal_inactive_file %llu\n", 10 * MiB);
	CHECK(is("pressure", "cgroup 84%"), "version 1: %s", why);
	file("/sys/fs/cgroup/memory/job/7/memory.limit_in_bytes", "9223372036854771712\n");
	CHECK(hw_cgroup_figures(&current, &max) && max == 0, "its number for no limit is none");

	new_machine();
	file("/proc/self/cgroup", "0::/kubepods/burstable/pod1/c1\n");
	file("/sys/fs/cgroup/memory.current", "%llu\n", 990 * MiB);
	file("/sys/fs/cgroup/memory.max", "%llu\n", 1000 * MiB);
	CHECK(is("pressure", "cgroup 99%"), "in a container the group is at the top of the mount, whatever its path says: %s", why);

	new_machine();
	file("/proc/pressure/memory", "some avg10=39.99 avg60=0.00 avg300=0.00 total=1\nfull avg10=90.00 avg60=0 avg300=0 total=1\n");
	CHECK(is(NULL, ""), "below the share nothing is stalled");
	file("/proc/pressure/memory", "some avg10=55.20 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.00 avg60=0 avg300=0 total=1\n");
	CHECK(is("pressure", "stalled for memory 55%"), "a stall: %s", why);
	CHECK(is(NULL, ""), "is told once");
	file("/proc/pressure/memory", "some avg10=25.00 avg60=0.00 avg300=0.00 total=1\n");
	CHECK(is(NULL, ""), "half of it");
	file("/proc/pressure/memory", "some avg10=10.00 avg60=0.00 avg300=0.00 total=1\n");
	CHECK(is(NULL, ""), "and less");
	file("/proc/pressure/memory", "some avg10=41.00 avg60=0.00 avg300=0.00 total=1\n");
	CHECK(is("pressure", "stalled"), "make the next one count");
	hw_triggers_forked();
	hw_config.psi_percent = 0;
	CHECK(is(NULL, ""), "0 turns it off");

	new_machine();
	rss(100);
	CHECK(is(NULL, ""), "the first look is what later ones are compared with");
	rss(150);
	CHECK(is(NULL, ""), "50 MiB more are half as much again, and no news");
	rss(170);
	CHECK(is("jump", "resident memory up by 73400320 to 178257920"), "70 MiB are: %s", why);
	hw_triggers_dumped();
	CHECK(is(NULL, ""), "after a dump it counts from there");
	rss(10000);
	hw_triggers_dumped();
	rss(10900);
	CHECK(is(NULL, ""), "9 %% of a big process and less than a GiB");
	hw_config.jump_percent = 5;
	CHECK(is("jump", ""), "are enough where 5 %% are asked for");
	hw_config.jump_percent = 0;
	hw_triggers_dumped();
	jump_last_ns = 0;
	hw_config.gap_ns = 3600ull * 1000000000ull;
	hw_config.interval_ns = 5000ull * 1000000000ull;
	rss(12000);
	CHECK(is("jump", "") && jump_gap_ns == hw_config.gap_ns, "more than a GiB is a jump without a share");
	hw_triggers_dumped();
	rss(14000);
	CHECK(is(NULL, ""), "the next one has to wait for the gap");
	jump_last_ns -= hw_config.gap_ns;
	CHECK(is("jump", "") && jump_gap_ns == hw_config.interval_ns, "and the one after that for twice the gap, an interval at most");
	hw_config.jump_bytes = 0;
	hw_triggers_forked();
	rss(1);
	hw_triggers_look(why, sizeof why);
	rss(90000);
	CHECK(is(NULL, ""), "without share and size there is no jump");

	hw_triggers_signal_init();
	CHECK(!said && signal(SIGUSR1, SIG_DFL) == SIG_DFL, "no signal is taken unasked");
	hw_config.signal = SIGUSR1;
	hw_triggers_signal_init();
	errno = 77;
	raise(SIGUSR1);
	CHECK(errno == 77 && woken == 1 && hw_triggers_signalled() && !hw_triggers_signalled(), "a signal wakes the clock, once");
	hw_config.signal = SIGUSR2;
	signal(SIGUSR2, SIG_IGN);
	hw_triggers_signal_init();
	CHECK(said == 1, "one that the program was started with ignored is left, and said");
	return checked("triggers");
}
