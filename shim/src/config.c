/* config.c: the environment variables, in one table.
 *
 * Runs in the constructor, before main, on the only thread there is. secure_getenv and string functions only: nothing
 * here allocates, opens or blocks.
 */
#include "config.h"

#include "out.h"

#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

struct hw_config hw_config;

enum type { T_BOOL, T_TARGET, T_PATH, T_DURATION, T_SIZE, T_LG_SIZE, T_PERCENT, T_LEVELS, T_JUMP, T_SIGNAL, T_OBJECTS, T_STACKS, T_EXPORT, T_ALLOCATOR };

static const char *const type_names[] = {"on|off", "auto|all|none", "path", "duration", "size", "size", "percent", "percents",
					 "percent, size or both", "signal", "sampled|malloc|off", "leaf|full", "auto|inproc|off", "fast|lean"};

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
	{"HEAPWIRE_EXEC_GUARD", T_BOOL, "on", 0, 0, "",
	 "a program that could not start with the library is started without it: musl, AddressSanitizer, another architecture",
	 &hw_config.exec_guard},
	{"HEAPWIRE_OTEL_CTX", T_BOOL, "off", 0, 0, "",
	 "the process's resource attributes in a mapping named OTEL_CTX, for OpenTelemetry's external readers", &hw_config.otel_ctx},
	{"HEAPWIRE_SPOOL", T_PATH, "${TMPDIR:-/tmp}/heapwire-<uid>", 0, 0, "", "the folder that dumps are written to",
	 hw_config.spool},
	{"HEAPWIRE_INTERVAL", T_DURATION, "60s", 100000000ull, 86400ull * 1000000000ull, "100ms to 24h, or 0 for none",
	 "time between two dumps (ms, s, m, h)", &hw_config.interval_ns},
	{"HEAPWIRE_SAMPLE_BYTES", T_LG_SIZE, "512KiB", 1, 1ull << 40, "1 to 1TiB, rounded down to a power of two, or auto",
	 "mean number of allocated bytes between two samples (KiB, MiB, GiB); auto finds one in the first seconds", &hw_config.lg_sample},
	{"HEAPWIRE_PYTHON_FRAMES", T_BOOL, "on", 0, 0, "", "Python frames in the stacks; off leaves the native ones",
	 &hw_config.python_frames},
	{"HEAPWIRE_STACKS", T_STACKS, "leaf", 0, 0, "",
	 "native frames between malloc and the innermost Python frame only, or all of them in their places",
	 &hw_config.full_stacks},
	{"HEAPWIRE_PYTHON_OBJECTS", T_OBJECTS, "sampled", 0, 0, "",
	 "objects of up to 512 bytes, which Python serves from arenas of its own: a sample of them, all of them from malloc, or none",
	 &hw_config.python_objects},
	{"HEAPWIRE_EXIT_DUMP", T_BOOL, "on", 0, 0, "", "a last dump when the process exits or calls _exit",
	 &hw_config.exit_dump},
	{"HEAPWIRE_ALLOCATOR", T_ALLOCATOR, "fast", 0, 0, "",
	 "jemalloc's settings: for speed, or for little memory; single ones by MALLOC_CONF", &hw_config.lean},
	{"HEAPWIRE_GIANT", T_SIZE, "1GiB", 0, UINT64_MAX / 2, "0 for off",
	 "one request from this size on is noted before it is served, and dumped at once", &hw_config.giant_bytes},
	{"HEAPWIRE_PRESSURE", T_LEVELS, "80,90,95", 1, 100, "up to 8, rising, or off",
	 "shares of the control group's memory limit whose crossing sets off a dump", hw_config.pressure},
	{"HEAPWIRE_PSI", T_PERCENT, "40", 0, 100, "0 for off",
	 "share of ten seconds in which something waited for memory that sets off a dump", &hw_config.psi_percent},
	{"HEAPWIRE_JUMP", T_JUMP, "20%,1GiB", 0, 0, "or off",
	 "growth of resident memory since the last dump that sets off a dump; a percentage counts from 64MiB on",
	 &hw_config.jump_percent},
	{"HEAPWIRE_GAP", T_DURATION, "5s", 100000000ull, 86400ull * 1000000000ull, "100ms to 24h",
	 "least time between two dumps that something set off", &hw_config.gap_ns},
	{"HEAPWIRE_SIGNAL", T_SIGNAL, "off", 0, 64, "a name or a number",
	 "a signal that sets off a dump; its handler is the library's then", &hw_config.signal},
	{"HEAPWIRE_EXPORT", T_EXPORT, "auto", 0, 0, "",
	 "who delivers the dumps: an exporter in the process where a sink's variable is set (auto), always, or others (off)",
	 &hw_config.export},
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

static const char *const targets[] = {"auto", "all", "none"}, *const objects[] = {"sampled", "malloc", "off"}, *const exports[] = {"auto", "inproc", "off"};

static bool parse_name(const char *s, const char *const names[3], int *v)
{
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
				    {"g", 1 << 30}, {"gib", 1 << 30}, {"t", 1ull << 40}, {"tib", 1ull << 40}, {NULL, 0}};

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

static bool is_off(const char *s)
{
	return !strcasecmp(s, "off") || !strcmp(s, "0") || !strcasecmp(s, "none");
}

/* "80,90,95" */
static bool parse_levels(const char *s, const struct row *r)
{
	unsigned levels[sizeof hw_config.pressure / sizeof *hw_config.pressure], n = 0;
	while (!is_off(s)) {
		char *end;
		unsigned long v = strtoul(s, &end, 10);
		if (end == s || v < r->min || v > r->max || n == sizeof levels / sizeof *levels || (n && v <= levels[n - 1]))
			return false;
		levels[n++] = (unsigned)v;
		end += *end == '%';
		if (!*end)
			break;
		if (*end != ',')
			return false;
		s = end + 1;
	}
	memcpy(hw_config.pressure, levels, n * sizeof *levels);
	hw_config.npressure = n;
	return true;
}

/* "20%", "1GiB", "20%,1GiB" */
static bool parse_jump(const char *s)
{
	uint64_t percent = 0, bytes = 0;
	while (!is_off(s)) {
		char part[32];
		size_t n = strcspn(s, ",");
		if (!n || n >= sizeof part)
			return false;
		memcpy(part, s, n);
		part[n] = 0;
		static const struct unit percents[] = {{"%", 1}, {NULL, 0}};
		if (part[n - 1] == '%' ? percent || !parse_number(part, percents, &percent) || !percent || percent > 100000
				       : bytes || !parse_number(part, sizes, &bytes) || !bytes)
			return false;
		if (!s[n])
			break;
		s += n + 1;
	}
	hw_config.jump_percent = (unsigned)percent;
	hw_config.jump_bytes = bytes;
	return true;
}

static bool parse_signal(const char *s, int *v)
{
	static const struct {
		const char *name;
		int number;
	} names[] = {{"USR1", SIGUSR1}, {"USR2", SIGUSR2}, {"HUP", SIGHUP},	  {"QUIT", SIGQUIT},
		     {"ALRM", SIGALRM}, {"IO", SIGIO},	   {"PROF", SIGPROF}, {"PWR", SIGPWR}};
	if (is_off(s)) {
		*v = 0;
		return true;
	}
	if (!strncasecmp(s, "SIG", 3))
		s += 3;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		if (!strcasecmp(s, names[i].name)) {
			*v = names[i].number;
			return true;
		}
	}
	char *end;
	long n = strtol(s, &end, 10);
	if (end == s || *end || n < 1 || n > 64 || n == SIGKILL || n == SIGSTOP)
		return false;
	*v = (int)n;
	return true;
}

static bool set(const struct row *r, const char *s)
{
	uint64_t n;
	switch (r->type) {
	case T_BOOL:
		return parse_bool(s, r->to);
	case T_TARGET:
		return parse_name(s, targets, r->to);
	case T_PATH:
		if (strlen(s) >= sizeof hw_config.spool)
			return false;
		return absolute(s, r->to);
	case T_OBJECTS:
		return parse_name(s, objects, r->to);
	case T_DURATION:
		if (!parse_number(s, durations, &n) || (n && (n < r->min || n > r->max)))
			return false;
		*(uint64_t *)r->to = n;
		return true;
	case T_SIZE:
		if (!parse_number(s, sizes, &n) || n < r->min || n > r->max)
			return false;
		*(uint64_t *)r->to = n;
		return true;
	case T_PERCENT:
		if (!parse_number(s, sizes, &n) || n < r->min || n > r->max)
			return false;
		*(unsigned *)r->to = (unsigned)n;
		return true;
	case T_LEVELS:
		return parse_levels(s, r);
	case T_JUMP:
		return parse_jump(s);
	case T_SIGNAL:
		return parse_signal(s, r->to);
	case T_STACKS:
		*(bool *)r->to = !strcasecmp(s, "full");
		return *(bool *)r->to || !strcasecmp(s, "leaf");
	case T_EXPORT:
		return parse_name(s, exports, r->to);
	case T_ALLOCATOR:
		*(bool *)r->to = !strcasecmp(s, "lean");
		return *(bool *)r->to || !strcasecmp(s, "fast");
	case T_LG_SIZE:
		if ((hw_config.sample_auto = !strcasecmp(s, "auto")))
			return true; /* begins at the default */
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
