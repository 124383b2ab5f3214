/* dump.c: one dump: jemalloc's text, the shim's sections behind it, the rename into the spool (docs/spool.md).
 *
 * Runs on the clock thread. While jemalloc writes it holds locks that fork and sampling threads wait for, so it writes into
 * memory; a disk that is slow, or hangs, gets the text afterwards, and holds up nobody but this thread. Where the kernel gives
 * no such file jemalloc gets a hidden one that was made here before (its own creat would give it mode 0644, and would print a
 * line to stderr for each failure). A reader never sees half a dump: the last step is the rename.
 *
 * A write beyond RLIMIT_FSIZE raises SIGXFSZ in the writing thread: the clock thread has all signals blocked and gets EFBIG.
 */
#include "dump.h"

#include "account.h"
#include "alloc.h"
#include "config.h"
#include "descriptors.h"
#include "giant.h"
#include "identity.h"
#include "intern.h"
#include "maps.h"
#include "native.h"
#include "out.h"
#include "pyframes.h"
#include "rate.h"
#include "pyobjects.h"
#include "slots.h"
#include "triggers.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Held by who makes the folder: the clock thread, or one that asks for a place. */
static pthread_mutex_t folder_lock = PTHREAD_MUTEX_INITIALIZER;
static char folder[sizeof hw_config.spool + sizeof hw_identity.folder + 1]; /* "": not made yet */
static _Atomic uint64_t seq;                                               /* the last number given out */
static uint64_t last_mono_ns;
static uint64_t last_dump_ns; /* the processor time of the last dump: a machine that is busy, or a slow disk, is no reason for fewer */
static uint64_t last_allocated;
static uint64_t failed; /* since the last dump that arrived */
static bool complained;
static _Atomic int stage;         /* 1: jemalloc's part of the newest dump is over */
static _Atomic int text_fd = -1, open_fd = -1; /* of the dump in the making, in the process's table: a fork copies them */

static char buffer[256 << 10]; /* of the writer and of the scan, in turn */
static uint64_t used[(HW_TABLE_SIZE + 64) / 64];

#define NO_STEP UINT64_MAX
static _Atomic uint64_t step = NO_STEP;

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

void hw_dump_begin(void)
{
	last_mono_ns = clock_ns(CLOCK_MONOTONIC);
}

void hw_dump_forked(void)
{
	int fds[] = {atomic_exchange(&text_fd, -1), atomic_exchange(&open_fd, -1)};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
		if (fds[i] >= 0)
			close(fds[i]);
	pthread_mutex_init(&folder_lock, NULL); /* whoever held it is not here */
	folder[0] = 0;
	atomic_store(&seq, 0);
	atomic_store(&step, NO_STEP);
	failed = 0;
	last_dump_ns = 0;
	atomic_store(&stage, 0);
	hw_dump_begin();
}

/* ---------------------------------------------------------------- the folder */

static int make_path(const char *path)
{
	char p[sizeof folder];
	snprintf(p, sizeof p, "%s", path);
	for (char *s = p + 1; *s; s++) {
		if (*s != '/')
			continue;
		*s = 0;
		if (mkdir(p, 0700) && errno != EEXIST)
			return errno;
		*s = '/';
	}
	return mkdir(p, 0700) && errno != EEXIST ? errno : 0;
}

/* The default spool lies in a folder that everybody may write to: somebody else's, or a link, is not taken. */
static int check_default_spool(void)
{
	struct stat st;
	if (lstat(hw_config.spool, &st))
		return errno;
	if (!S_ISDIR(st.st_mode))
		return ENOTDIR;
	return st.st_uid != geteuid() || st.st_mode & 022 ? EPERM : 0;
}

/* After an exec the process has the same folder and goes on with its sequence. */
static void continue_sequence(void)
{
	DIR *d = opendir(folder);
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d));) {
		unsigned long long n = strtoull(e->d_name, NULL, 10);
		if (n > atomic_load(&seq) && (strstr(e->d_name, ".heap") || strstr(e->d_name, ".json")))
			atomic_store(&seq, n);
	}
	closedir(d);
}

static int write_process_json(void)
{
	char tmp[sizeof folder + 32], path[sizeof folder + 32];
	snprintf(tmp, sizeof tmp, "%s/.process.json.tmp", folder);
	snprintf(path, sizeof path, "%s/process.json", folder);
	int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return errno;
	int err = hw_identity_write(fd);
	if (fd >= 0 && close(fd) && !err)
		err = errno;
	if (!err && rename(tmp, path))
		err = errno;
	if (err)
		unlink(tmp);
	return err;
}

static int make_folder(void)
{
	hw_identity_read();
	int err = make_path(hw_config.spool);
	if (!err && hw_config.spool_is_default)
		err = check_default_spool();
	if (err)
		return err;
	snprintf(folder, sizeof folder, "%s/%s", hw_config.spool, hw_identity.folder);
	if (mkdir(folder, 0700)) {
		if (errno != EEXIST) {
			err = errno;
			folder[0] = 0;
			return err;
		}
		continue_sequence();
	}
	return write_process_json();
}

/* With `again`, the folder has gone. */
static int have_folder(bool again)
{
	pthread_mutex_lock(&folder_lock);
	int err = again || !folder[0] ? make_folder() : 0;
	pthread_mutex_unlock(&folder_lock);
	return err;
}

int hw_dump_folder(void)
{
	return have_folder(false);
}

int hw_dump_place(char *path, size_t size)
{
	struct stat st;
	int err = have_folder(false);
	if (!err && stat(folder, &st))
		err = have_folder(true);
	if (err)
		return err;
	int n = snprintf(path, size, "%s/%06llu", folder, (unsigned long long)atomic_fetch_add(&seq, 1) + 1);
	return n >= 0 && (size_t)n < size ? 0 : ERANGE;
}

void hw_dump_step(uint64_t n)
{
	atomic_store(&step, n);
}

/* ---------------------------------------------------------------- sections */

static void line_dec(struct hw_out *o, const char *key, uint64_t v)
{
	hw_out_str(o, key);
	hw_out_char(o, '=');
	hw_out_dec(o, v);
	hw_out_char(o, '\n');
}

static void line_str(struct hw_out *o, const char *key, const char *v)
{
	hw_out_str(o, key);
	hw_out_char(o, '=');
	hw_out_str(o, v);
	hw_out_char(o, '\n');
}

/* A `Key:   1234 kB` line of a /proc file as bytes. */
static bool kb_line(const char *text, const char *key, uint64_t *v)
{
	size_t n = strlen(key);
	for (const char *p = text; p; p = strchr(p, '\n')) {
		p += *p == '\n';
		if (!strncmp(p, key, n) && p[n] == ':') {
			*v = strtoull(p + n + 1, NULL, 10) * 1024;
			return true;
		}
		if (!*p)
			break;
	}
	return false;
}

#define PSS_MOST (256ull << 20)

static void memory_of_process(struct hw_out *o)
{
	static char text[8192];
	uint64_t v, rss = 0;
	if (hw_read_file("/proc/self/status", text, sizeof text) > 0) {
		static const char *const keys[][2] = {
			{"VmRSS", "rss"},    {"RssAnon", "anon"},	   {"RssFile", "file"},
			{"RssShmem", "shmem"}, {"VmSwap", "swap"}, {"VmPTE", "page_tables"}, {"HugetlbPages", "hugetlb"}};
		for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
			if (kb_line(text, keys[i][0], &v)) {
				line_dec(o, keys[i][1], v);
				rss = i ? rss : v;
			}
	}
	/* The kernel walks every page for it, 30 ms a GiB, and whoever maps or unmaps memory waits meanwhile. */
	if (rss <= PSS_MOST && hw_read_file("/proc/self/smaps_rollup", text, sizeof text) > 0 && kb_line(text, "Pss", &v))
		line_dec(o, "pss", v);
}

static bool accounted;

static void parts(struct hw_out *o, const struct hw_account *a)
{
	for (int i = 0; i < HW_PARTS; i++)
		line_dec(o, hw_account_keys[i], a->part[i]);
	line_dec(o, "part_sum", a->counted);
	line_dec(o, "thread_stacks", a->stacks);
	if (a->arenas) {
		line_dec(o, "python_arenas", a->arenas);
		line_dec(o, "python_arena_bytes", a->arena_bytes);
		if (hw_py_minor() >= 8) /* blocks were of 8 bytes and not of 16 before */
			line_dec(o, "python_block_bytes", a->arena_blocks);
	}
	line_dec(o, "mappings_lost", a->lost);
}

static void meta(struct hw_out *o, uint64_t number, const char *reason, const char *why, uint64_t time_ns, uint64_t interval_ns,
		 const struct hw_alloc_stats *a)
{
	hw_out_str(o, "HEAPWIRE_META: 1\n");
	line_dec(o, "seq", number);
	line_str(o, "reason", reason);
	if (*why)
		line_str(o, "trigger", why);
	line_dec(o, "time_unix_nano", time_ns);
	line_dec(o, "interval_ns", interval_ns);
	line_dec(o, "sample_bytes", hw_alloc_sample_bytes());
	line_str(o, "allocator", hw_config.lean ? "lean" : "fast");
	line_dec(o, "prof_accum", hw_alloc_accum());
	line_dec(o, "unbiased", hw_alloc_unbiased());
	uint64_t s = atomic_load(&step);
	if (s != NO_STEP)
		line_dec(o, "step", s);
	if (a->allocated) {
		line_dec(o, "allocated", a->allocated);
		line_dec(o, "active", a->active);
		line_dec(o, "metadata", a->metadata);
		line_dec(o, "resident", a->resident);
		line_dec(o, "mapped", a->mapped);
		line_dec(o, "retained", a->retained);
	}
	static struct hw_account account;
	accounted = hw_account(&account); /* first: it touches tables of its own */
	memory_of_process(o);
	if (accounted)
		parts(o, &account);
	uint64_t current, max;
	if (hw_cgroup_figures(&current, &max)) {
		line_dec(o, "cgroup_current", current);
		if (max)
			line_dec(o, "cgroup_max", max);
	}
	line_dec(o, "samples", HW_GET(samples));
	line_dec(o, "samples_python", HW_GET(samples_python));
	line_dec(o, "frames_failed", HW_GET(frames_failed));
	line_dec(o, "native_failed", HW_GET(native_failed));
	line_dec(o, "stacks_cut", HW_GET(stacks_cut));
	line_dec(o, "captures_lost", HW_GET(captures_lost));
	line_dec(o, "object_samples", hw_slots_samples());
	line_dec(o, "object_samples_lost", hw_slots_lost());
	line_dec(o, "functions", HW_GET(functions));
	line_dec(o, "functions_dropped", HW_GET(functions_dropped));
	line_dec(o, "giant_requests", hw_giant_count());
	line_dec(o, "giant_lost", hw_giant_lost());
	line_dec(o, "dumps_failed", failed);
	if (last_dump_ns)
		line_dec(o, "last_dump_ns", last_dump_ns);
	if (*hw_py_version())
		line_str(o, "python", hw_py_version());
	line_str(o, "python_frames", hw_py_frames_state());
	line_str(o, "python_objects", hw_objects_state());
	uint64_t bytes, objects;
	unsigned changes = hw_rate_changes(&bytes, &objects);
	if (changes) {
		line_dec(o, "sample_changes", changes);
		line_dec(o, "resampled_bytes", bytes);
		line_dec(o, "resampled_objects", objects);
	}
	if (hw_identity.forked) {
		line_dec(o, "inherited_bytes", hw_identity.inherited_bytes);
		line_dec(o, "inherited_objects", hw_identity.inherited_objects);
	}
	hw_out_char(o, '\n');
}

static bool one_object(const struct hw_mapping *m, void *arg)
{
	struct hw_out *o = arg;
	struct hw_object object;
	if (m->path[0] != '/' || !hw_maps_object(m, &object))
		return true;
	hw_out_hex(o, m->start);
	hw_out_char(o, '-');
	hw_out_hex(o, object.end);
	hw_out_char(o, ' ');
	for (unsigned k = 0; k < object.id_len; k++) {
		hw_out_char(o, "0123456789abcdef"[object.id[k] >> 4]);
		hw_out_char(o, "0123456789abcdef"[object.id[k] & 15]);
	}
	if (!object.id_len)
		hw_out_char(o, '-');
	hw_out_char(o, ' ');
	hw_out_str(o, m->path); /* the kernel writes a newline in it as \012 */
	hw_out_char(o, '\n');
	return true;
}

static void build_ids(struct hw_out *o)
{
	hw_out_str(o, "HEAPWIRE_BUILD_IDS: 1\n");
	hw_maps_each(one_object, o);
	hw_out_char(o, '\n');
}

static void use_id(uint32_t id)
{
	if (id <= HW_TABLE_SIZE)
		used[id / 64] |= 1ull << id % 64;
}

static void use_address(uint64_t a)
{
	if (a >> 48 == HW_TAG >> 48)
		use_id((uint32_t)(a >> HW_LINE_BITS) & 0x3ffffff);
}

/* Which functions occur: every 0x5079 and twelve hex digits in jemalloc's text. Bytes of the text in `buffer`. */
static int scan(int fd)
{
	static const char tag[] = "0x5079";
	memset(used, 0, sizeof used);
	unsigned matched = 0, digits = 0;
	uint64_t v = 0;
	for (;;) {
		ssize_t n = read(fd, buffer, sizeof buffer);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return errno;
		if (n == 0)
			return 0;
		for (ssize_t i = 0; i < n; i++) {
			char c = buffer[i];
			if (matched < sizeof tag - 1) {
				matched = c == tag[matched] ? matched + 1 : c == tag[0];
				digits = 0;
				v = 0;
				continue;
			}
			int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
			if (d >= 0 && digits < 12) {
				v = v << 4 | (unsigned)d;
				if (++digits < 12)
					continue;
				use_id((uint32_t)(v >> HW_LINE_BITS));
			}
			matched = c == tag[0];
		}
	}
}

static void frames(struct hw_out *o)
{
	hw_out_str(o, "HEAPWIRE_FRAMES: 1\n");
	for (uint32_t id = 1; id <= HW_TABLE_SIZE; id++) {
		struct hw_function f;
		if (!(used[id / 64] >> id % 64 & 1) || !hw_intern_get(id, &f))
			continue;
		hw_out_dec(o, id);
		hw_out_char(o, '\t');
		hw_out_escaped(o, f.name, f.name_len);
		hw_out_char(o, '\t');
		hw_out_escaped(o, f.file, f.file_len);
		hw_out_char(o, '\t');
		hw_out_dec(o, f.first_line);
		hw_out_char(o, '\n');
	}
	hw_out_char(o, '\n');
}

/* ---------------------------------------------------------------- one dump */

/* A file in memory that jemalloc can be given a name of, or -1. */
static int memory_file(char *name, size_t cap)
{
	int fd = hw_memory_file("heapwire", 0);
	snprintf(name, cap, "/proc/thread-self/fd/%d", fd); /* the first thread may have ended */
	if (fd >= 0 && access(name, W_OK)) { /* no /proc here */
		close(fd);
		fd = -1;
	}
	return fd;
}

static int copy(int to, int from)
{
	off_t at = 0;
	for (;;) {
		ssize_t n = sendfile(to, from, &at, 1 << 20);
		if (n < 0 && errno != EINTR)
			return errno;
		if (n == 0)
			return 0;
	}
}

static int write_dump(uint64_t number, const char *tmp, const char *path, const char *reason, const char *why)
{
	uint64_t mono = clock_ns(CLOCK_MONOTONIC), wall = clock_ns(CLOCK_REALTIME);
	hw_native_refresh();
	atomic_store(&stage, 0);
	struct hw_alloc_stats stats = {0};
	hw_alloc_stats(&stats);
	last_allocated = stats.allocated;
	char name[40];
	int text = memory_file(name, sizeof name);
	bool shared = !hw_descriptors_left();
	if (shared)
		atomic_store(&text_fd, text);
	int err = hw_alloc_dump(text >= 0 ? name : tmp);
	atomic_store(&stage, 1);
	int fd = err ? -1 : open(tmp, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
	if (!err && fd < 0)
		err = errno;
	if (shared)
		atomic_store(&open_fd, fd);
	if (!err && text >= 0)
		err = copy(fd, text);
	if (!err)
		err = scan(text >= 0 ? text : fd);
	atomic_store(&text_fd, -1);
	if (text >= 0)
		close(text);
	if (!err) {
		struct hw_out o;
		hw_out_begin(&o, fd, buffer, sizeof buffer);
		meta(&o, number, reason, why, wall, mono - last_mono_ns, &stats);
		build_ids(&o);
		if (accounted)
			hw_account_mappings(&o);
		hw_giant_write(&o, use_address);
		hw_slots_write(&o, use_address);
		frames(&o);
		err = hw_out_end(&o);
	}
	atomic_store(&open_fd, -1);
	if (fd >= 0 && close(fd) && !err)
		err = errno;
	if (!err && rename(tmp, path))
		err = errno;
	if (!err)
		last_mono_ns = mono;
	return err;
}

static int try_dump(const char *reason, const char *why)
{
	char tmp[sizeof folder + 64], path[sizeof folder + 64];
	int fd = -1, err = 0;
	uint64_t number = 0;
	for (int attempt = 0; attempt < 2 && fd < 0; attempt++) {
		/* No folder yet, or somebody has deleted it: it is made (again). */
		if ((err = have_folder(attempt)))
			break;
		if (!number)
			number = atomic_fetch_add(&seq, 1) + 1;
		snprintf(tmp, sizeof tmp, "%s/.%06llu.tmp", folder, (unsigned long long)number);
		fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
		if (fd < 0 && (err = errno) != ENOENT)
			break;
	}
	if (fd >= 0) {
		close(fd);
		snprintf(path, sizeof path, "%s/%06llu.%s.heap", folder, (unsigned long long)number, reason);
		err = write_dump(number, tmp, path, reason, why);
		if (err)
			unlink(tmp);
	}
	/* A number that did not become a file is given out again, if it still is the last one. */
	uint64_t before = number;
	if (err && number)
		atomic_compare_exchange_strong(&seq, &before, number - 1);
	return err;
}

int hw_dump(const char *reason, const char *why)
{
	uint64_t began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	int err = try_dump(reason, why);
	hw_giant_told(!err);
	if (!err) {
		failed = 0;
		last_dump_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began;
		return 0;
	}
	failed++;
	if (!complained) {
		complained = true;
		hw_say("cannot write dumps to %s: %s. The job goes on; the next dump that arrives says how many were lost "
		       "(dumps_failed). HEAPWIRE_SPOOL names another folder.",
		       hw_config.spool, hw_errno_text(err));
	}
	return err;
}

uint64_t hw_dump_cost_ns(void)
{
	return last_dump_ns;
}

uint64_t hw_dump_allocated(void)
{
	return last_allocated;
}

void hw_dump_expected(void)
{
	atomic_store(&stage, 0);
}

bool hw_dump_past_allocator(void)
{
	return atomic_load(&stage);
}
