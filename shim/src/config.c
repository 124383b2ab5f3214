/* config.c: the environment variables, in one table.
 *
 * Runs in the constructor, before main, on the only thread there is. secure_getenv and string functions only: nothing
 * here allocates, opens or blocks.
 */
#include "config.h"

#include "out.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct hw_config hw_config;

enum type { T_BOOL, T_TARGET, T_PATH, T_DURATION, T_SIZE };

static const char *const type_names[] = {"on|off", "auto|all|none", "path", "duration", "size"};

struct row {
	const char *name;
	enum type type;
	const char *dflt;
	uint64_t min, max; /* of numbers */
	const char *bounds;
	const char *what;
	void *to;
};

static const struct row rows[] = {
	{"HEAPWIRE", T_BOOL, "on", 0, 0, "",
	 "the switch that turns everything off: jemalloc stays the allocator, nothing is sampled, no thread, no file",
	 &hw_config.enabled},
	{"HEAPWIRE_TARGET", T_TARGET, "auto", 0, 0, "",
	 "which processes are profiled: those with a Python interpreter (auto), every one (all), none", &hw_config.target},
	{"HEAPWIRE_SPOOL", T_PATH, "${TMPDIR:-/tmp}/heapwire-<uid>", 0, 0, "", "the folder that dumps are written to",
	 hw_config.spool},
	{"HEAPWIRE_INTERVAL", T_DURATION, "60s", 100000000ull, 86400ull * 1000000000ull, "100ms to 24h, or 0 for none",
	 "time between two dumps (ms, s, m, h)", &hw_config.interval_ns},
	{"HEAPWIRE_SAMPLE_BYTES", T_SIZE, "512KiB", 1, 1ull << 40, "1 to 1TiB, rounded down to a power of two",
	 "mean number of allocated bytes between two samples (KiB, MiB, GiB)", &hw_config.lg_sample},
	{"HEAPWIRE_PYTHON_FRAMES", T_BOOL, "on", 0, 0, "", "Python frames in the stacks; off leaves the native ones",
	 &hw_config.python_frames},
	{"HEAPWIRE_EXIT_DUMP", T_BOOL, "on", 0, 0, "", "a last dump when the process exits or calls _exit",
	 &hw_config.exit_dump},
};

#define NROWS (sizeof rows / sizeof *rows)

static bool bad[NROWS];

static bool parse_bool(const char *s, bool *v)
{
	if (!strcasecmp(s, "on") || !strcasecmp(s, "true") || !strcmp(s, "1") || !strcasecmp(s, "yes")) {
		*v = true;
		return true;
	}
	if (!strcasecmp(s, "off") || !strcasecmp(s, "false") || !strcmp(s, "0") || !strcasecmp(s, "no")) {
		*v = false;
		return true;
	}
	return false;
}

static bool parse_target(const char *s, int *v)
{
	static const char *const names[] = {"auto", "all", "none"};
	for (int i = 0; i < 3; i++) {
		if (!strcasecmp(s, names[i])) {
			*v = i;
			return true;
		}
	}
	return false;
}

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit durations[] = {{"", 1000000000ull}, {"ms", 1000000ull}, {"s", 1000000000ull},
					{"m", 60000000000ull}, {"h", 3600000000000ull}, {NULL, 0}};
static const struct unit sizes[] = {{"", 1}, {"b", 1}, {"k", 1 << 10}, {"kib", 1 << 10}, {"m", 1 << 20}, {"mib", 1 << 20},
				    {"g", 1 << 30}, {"gib", 1 << 30}, {NULL, 0}};

/* A whole number and a unit; false on anything else, on overflow too. */
static bool parse_number(const char *s, const struct unit *u, uint64_t *v)
{
	uint64_t n = 0;
	const char *p = s;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (n > (UINT64_MAX - 9) / 10)
			return false;
		n = n * 10 + (uint64_t)(*p - '0');
	}
	if (p == s)
		return false;
	for (; u->name; u++) {
		if (!strcasecmp(p, u->name)) {
			if (n && u->factor > UINT64_MAX / n)
				return false;
			*v = n * u->factor;
			return true;
		}
	}
	return false;
}

/* Made absolute at start: the job may change its folder later. */
static bool absolute(const char *s, char *to)
{
	size_t n = 0;
	if (*s != '/') {
		if (!getcwd(to, sizeof hw_config.spool))
			return false;
		n = strlen(to);
		if (n + 1 + strlen(s) >= sizeof hw_config.spool)
			return false;
		to[n++] = '/';
	}
	strcpy(to + n, s);
	return true;
}

static bool set(const struct row *r, const char *s)
{
	uint64_t n;
	switch (r->type) {
	case T_BOOL:
		return parse_bool(s, r->to);
	case T_TARGET:
		return parse_target(s, r->to);
	case T_PATH:
		if (strlen(s) >= sizeof hw_config.spool)
			return false;
		return absolute(s, r->to);
	case T_DURATION:
		if (!parse_number(s, durations, &n) || (n && (n < r->min || n > r->max)))
			return false;
		*(uint64_t *)r->to = n;
		return true;
	case T_SIZE:
		if (!parse_number(s, sizes, &n) || n < r->min || n > r->max)
			return false;
		*(unsigned *)r->to = 63u - (unsigned)__builtin_clzll(n);
		return true;
	}
	return false;
}

static void default_spool(void)
{
	const char *tmp = secure_getenv("TMPDIR");
	if (!tmp || tmp[0] != '/' || strlen(tmp) > sizeof hw_config.spool - 64)
		tmp = "/tmp";
	snprintf(hw_config.spool, sizeof hw_config.spool, "%s/heapwire-%u", tmp, (unsigned)geteuid());
	hw_config.spool_is_default = true;
}

void hw_config_read(void)
{
	hw_config = (struct hw_config){0};
	for (size_t i = 0; i < NROWS; i++) {
		const struct row *r = &rows[i];
		if (r->type == T_PATH)
			default_spool();
		else
			set(r, r->dflt);
		const char *s = secure_getenv(r->name);
		if (!s || !*s)
			continue;
		if (!set(r, s)) {
			bad[i] = true;
			if (r->type == T_PATH)
				default_spool();
			continue;
		}
		if (r->to == hw_config.spool)
			hw_config.spool_is_default = false;
		if (r->to == &hw_config.lg_sample)
			hw_config.lg_sample_set = true;
	}
}

void hw_config_complain(void)
{
	for (size_t i = 0; i < NROWS; i++) {
		if (!bad[i])
			continue;
		const char *s = secure_getenv(rows[i].name);
		hw_say("%s=%.60s is not understood (%s%s%s): taking the default, %s", rows[i].name, s ? s : "",
		       type_names[rows[i].type], *rows[i].bounds ? ", " : "", rows[i].bounds, rows[i].dflt);
	}
}

const char *hw_config_row(size_t i, const char **type, const char **dflt, const char **bounds, const char **what)
{
	if (i >= NROWS)
		return NULL;
	*type = type_names[rows[i].type];
	*dflt = rows[i].dflt;
	*bounds = rows[i].bounds;
	*what = rows[i].what;
	return rows[i].name;
}
