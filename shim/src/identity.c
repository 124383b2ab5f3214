/* identity.c: who is this process? For the folder's name and process.json (docs/spool.md).
 *
 * hw_identity_environment runs in the constructor, hw_identity_read and hw_identity_write outside malloc, on the clock thread
 * or one that asks for a place in the folder: small reads of /proc, no allocation. Of the environment only the variables
 * listed here are looked at: command lines and other variables hold secrets.
 */
#include "identity.h"

#include "alloc.h"
#include "config.h"
#include "out.h"
#include "pyframes.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct hw_identity hw_identity;

static const char *const variables[] = {
	"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "NODE_RANK",		/* torchrun */
	"SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NODEID",		/* Slurm */
	"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE",			/* Open MPI */
	"PMI_RANK", "PMI_SIZE",										/* MPICH, Intel MPI */
	"RAY_JOB_ID",											/* Ray */
};

/* Copies, made before main: the program may change its environment at any time, on any thread, and getenv does not wait
 * for it. */
#define VALUE_MAX 256
static char values[sizeof variables / sizeof *variables][VALUE_MAX];
static char service_name[VALUE_MAX], resource_attributes[4096];

static void copy_variable(char *to, size_t cap, const char *name)
{
	const char *v = secure_getenv(name);
	size_t n = v ? strlen(v) : 0;
	if (n >= cap)
		n = 0; /* a cut value would be a wrong one */
	memcpy(to, v ? v : "", n);
	to[n] = 0;
}

void hw_identity_environment(void)
{
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
		copy_variable(values[i], VALUE_MAX, variables[i]);
	copy_variable(service_name, sizeof service_name, "OTEL_SERVICE_NAME");
	copy_variable(resource_attributes, sizeof resource_attributes, "OTEL_RESOURCE_ATTRIBUTES");
}

static uint64_t clock_ns(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool known;

static void read_identity(struct hw_identity *id)
{
	if (gethostname(id->host, sizeof id->host - 1))
		strcpy(id->host, "localhost");
	id->host[sizeof id->host - 1] = 0;
	id->pid = (int)getpid();
	id->parent_pid = (int)getppid();
	id->start_ticks = hw_stat_field(HW_STAT_START);
	uint64_t since_boot = id->start_ticks * (1000000000ull / (uint64_t)sysconf(_SC_CLK_TCK));
	id->start_unix_nano = clock_ns(CLOCK_REALTIME) - clock_ns(CLOCK_BOOTTIME) + since_boot;
	char safe[sizeof id->host];
	size_t i = 0;
	for (; id->host[i]; i++)
		safe[i] = isalnum((unsigned char)id->host[i]) || id->host[i] == '.' || id->host[i] == '_' ? id->host[i] : '_';
	safe[i] = 0;
	if (safe[0] == '.')
		safe[0] = '_';
	snprintf(id->folder, sizeof id->folder, "%s-%d-%llu", safe, id->pid, (unsigned long long)id->start_ticks);
}

void hw_identity_read(void)
{
	pthread_mutex_lock(&lock);
	if (!known)
		read_identity(&hw_identity);
	known = true;
	pthread_mutex_unlock(&lock);
}

void hw_identity_forked(void)
{
	pthread_mutex_init(&lock, NULL); /* whoever held it is not here */
	known = false;
	hw_identity.pid = (int)getpid();
	hw_identity.forked = true;
}

/* ---------------------------------------------------------------- process.json */

static void json_string(struct hw_out *o, const char *s)
{
	hw_out_char(o, '"');
	for (const unsigned char *p = (const unsigned char *)s; *p;) {
		size_t n = hw_utf8_len(p, strlen((const char *)p));
		if (n == 0) {
			hw_out_str(o, "\\ufffd");
			p++;
		} else if (*p < 0x20 || *p == 0x7f) {
			hw_out_str(o, "\\u00");
			hw_out_char(o, "0123456789abcdef"[*p >> 4]);
			hw_out_char(o, "0123456789abcdef"[*p & 15]);
			p++;
		} else {
			if (*p == '"' || *p == '\\')
				hw_out_char(o, '\\');
			hw_out_bytes(o, p, n);
			p += n;
		}
	}
	hw_out_char(o, '"');
}

static void key(struct hw_out *o, const char *name)
{
	hw_out_str(o, ",\n ");
	json_string(o, name);
	hw_out_str(o, ": ");
}

static void key_number(struct hw_out *o, const char *name, uint64_t v)
{
	key(o, name);
	hw_out_dec(o, v);
}

static void key_string(struct hw_out *o, const char *name, const char *v)
{
	if (!v || !*v)
		return;
	key(o, name);
	json_string(o, v);
}

/* The first run of 64 hex digits: how Docker, containerd, CRI-O and podman name a container in cgroup and mount paths. */
static bool find_container_id(const char *path, char *id)
{
	static char buf[64 << 10]; /* one at a time: whoever makes the folder */
	if (hw_read_file(path, buf, sizeof buf) <= 0)
		return false;
	size_t run = 0;
	for (const char *p = buf; *p; p++) {
		run = isxdigit((unsigned char)*p) && !isupper((unsigned char)*p) ? run + 1 : 0;
		if (run == 64 && !isxdigit((unsigned char)p[1])) {
			memcpy(id, p - 63, 64);
			id[64] = 0;
			return true;
		}
	}
	return false;
}

int hw_identity_write(int fd)
{
	const struct hw_identity *id = &hw_identity;
	char buf[4096], text[4096];
	struct hw_out o;
	hw_out_begin(&o, fd, buf, sizeof buf);
	hw_out_str(&o, "{\"schema\": 1");
	key_string(&o, "host", id->host);
	key_number(&o, "pid", (uint64_t)id->pid);
	key_number(&o, "start_ticks", id->start_ticks);
	long n = hw_read_file("/proc/sys/kernel/random/boot_id", text, sizeof text);
	if (n > 0) {
		text[strcspn(text, "\n")] = 0;
		key_string(&o, "boot_id", text);
	}
	key_number(&o, "start_time_unix_nano", id->start_unix_nano);
	key_number(&o, "parent_pid", (uint64_t)id->parent_pid);
	ssize_t k = readlink("/proc/self/exe", text, sizeof text - 1);
	if (k > 0) {
		text[k] = 0;
		key_string(&o, "executable", text);
	}
	key_string(&o, "python_version", hw_py_version());
	key_string(&o, "service_name", service_name);
	key_string(&o, "resource_attributes", resource_attributes);
	key(&o, "variables");
	hw_out_char(&o, '{');
	bool any = false;
	for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
		if (!values[i][0])
			continue;
		if (any)
			hw_out_str(&o, ", ");
		any = true;
		json_string(&o, variables[i]);
		hw_out_str(&o, ": ");
		json_string(&o, values[i]);
	}
	hw_out_char(&o, '}');
	char container[65];
	if (find_container_id("/proc/self/cgroup", container) || find_container_id("/proc/self/mountinfo", container))
		key_string(&o, "container_id", container);
	/* Who reads this may have another view of pids, under the same host name. */
	k = readlink("/proc/self/ns/pid", text, sizeof text - 1);
	if (k > 0) {
		text[k] = 0;
		key_string(&o, "pid_namespace", text);
	}
	key(&o, "forked");
	hw_out_str(&o, id->forked ? "true" : "false");
	if (id->forked) {
		key_number(&o, "inherited_bytes", id->inherited_bytes);
		key_number(&o, "inherited_objects", id->inherited_objects);
	}
	if (!hw_config.exit_dump) {
		key(&o, "exit_dump");
		hw_out_str(&o, "false");
	}
	key_string(&o, "shim_version", HW_VERSION);
	key_string(&o, "jemalloc_version", hw_alloc_version());
	key_number(&o, "sample_bytes", hw_alloc_sample_bytes());
	hw_out_str(&o, "\n}\n");
	return hw_out_end(&o);
}
