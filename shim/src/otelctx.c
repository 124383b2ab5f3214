/* otelctx.c: the identity as an OpenTelemetry process context, for profilers outside of the process.
 *
 * A reader such as the OpenTelemetry eBPF profiler looks in /proc/<pid>/maps for a mapping named OTEL_CTX, finds a header of
 * 32 bytes and, where it points, the resource attributes as protobuf. The attributes are those that the exporter sends
 * (exporter/sink), as far as the process knows them. Off by default: a process has one context, and a program that has an
 * OpenTelemetry SDK of its own may publish it there.
 *
 * Runs in the constructor, and in a forked child before fork returns: on one thread, whose static memory nobody else
 * touches. System calls, no allocation. What the environment says is copied in the constructor: the program may change it.
 *
 * Sources: OTEP 4719 (open-telemetry/opentelemetry-specification, oteps/profiles/4719-process-ctx.md, read at 1377f53b2) for
 * the header, version 2, and the order of publication; opentelemetry-proto, read at ac2c4b5, for the messages
 * (processcontext/v1development/process_context.proto, resource/v1/resource.proto, common/v1/common.proto).
 */
#include "otelctx.h"

#include "config.h"
#include "out.h"
#include "pyframes.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41 /* Linux 5.17 */
#define PR_SET_VMA_ANON_NAME 0
#endif

struct header {
	char signature[8];
	uint32_t version;
	uint32_t payload_size;
	_Atomic uint64_t published_ns; /* CLOCK_BOOTTIME; 0 while the rest is not ready: written last */
	uint64_t payload;	       /* its address in this process */
};

_Static_assert(sizeof(struct header) == 32 && offsetof(struct header, payload) == 24, "the header's layout is the reader's");

static char service[256], attributes[4096], executable[4096], host[65];
static char place[3][64]; /* rank, local rank, world size */

/* ---------------------------------------------------------------- protobuf */

#define PAYLOAD_MAX (16u << 10)
#define PREFIX 4 /* tag and length of the resource, whose length is known last */

static unsigned char payload[PAYLOAD_MAX];
static size_t used;
static uint64_t dropped;

static size_t varint_size(uint64_t v)
{
	size_t n = 1;
	while (v >>= 7)
		n++;
	return n;
}

static void put_varint(uint64_t v)
{
	for (; v >= 0x80; v >>= 7)
		payload[used++] = (unsigned char)(v | 0x80);
	payload[used++] = (unsigned char)v;
}

static void put_bytes(unsigned char tag, const char *p, size_t n)
{
	payload[used++] = tag;
	put_varint(n);
	memcpy(payload + used, p, n);
	used += n;
}

enum { /* field number << 3 | wire type */
	CONTEXT_RESOURCE = 1 << 3 | 2,
	RESOURCE_ATTRIBUTES = 1 << 3 | 2,
	RESOURCE_DROPPED = 2 << 3 | 0,
	KEY = 1 << 3 | 2,
	VALUE = 2 << 3 | 2,
	STRING_VALUE = 1 << 3 | 2,
	INT_VALUE = 3 << 3 | 0,
};

#define DROPPED_ROOM 11 /* for the count of what found no room */

/* One attribute, with text or, where that is NULL, a number. What finds no room is left out whole. */
static void put_attribute(const char *key, size_t k, const char *text, size_t n, int64_t number)
{
	size_t value = text ? 1 + varint_size(n) + n : 1 + varint_size((uint64_t)number);
	size_t pair = 1 + varint_size(k) + k + 1 + varint_size(value) + value;
	if (used + 1 + varint_size(pair) + pair > sizeof payload - DROPPED_ROOM) {
		dropped++;
		return;
	}
	payload[used++] = RESOURCE_ATTRIBUTES;
	put_varint(pair);
	put_bytes(KEY, key, k);
	payload[used++] = VALUE;
	put_varint(value);
	if (text) {
		put_bytes(STRING_VALUE, text, n);
	} else {
		payload[used++] = INT_VALUE;
		put_varint((uint64_t)number);
	}
}

/* ---------------------------------------------------------------- OTEL_RESOURCE_ATTRIBUTES */

/* A protobuf string is UTF-8, or the reader refuses the whole message: other bytes become U+FFFD. `to` has room for three
 * times as many. */
static size_t clean(const char *s, size_t n, char *to)
{
	size_t k = 0;
	for (size_t i = 0; i < n;) {
		size_t len = hw_utf8_len((const unsigned char *)s + i, n - i);
		memcpy(to + k, len ? s + i : "\xef\xbf\xbd", len ? len : 3);
		k += len ? len : 3;
		i += len ? len : 1;
	}
	return k;
}

struct text {
	char raw[sizeof attributes];
	char bytes[3 * sizeof attributes];
	size_t n;
};

static int hex(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool blank(char c)
{
	return c == ' ' || (c >= '\t' && c <= '\r');
}

/* A key or value: blanks around it are dropped, then percent-encoding is undone. */
static bool decode(const char *s, size_t n, struct text *t)
{
	while (n && blank(*s))
		s++, n--;
	while (n && blank(s[n - 1]))
		n--;
	size_t k = 0;
	for (size_t i = 0; i < n; i++, k++) {
		t->raw[k] = s[i];
		if (s[i] != '%')
			continue;
		if (n - i < 3 || hex(s[i + 1]) < 0 || hex(s[i + 2]) < 0)
			return false;
		t->raw[k] = (char)(hex(s[i + 1]) << 4 | hex(s[i + 2]));
		i += 2;
	}
	t->n = clean(t->raw, k, t->bytes);
	return true;
}

/* The next "key=value"; 1, 0 at the end, -1 at what is none. Empty members are passed over. */
static int member(const char **at, struct text *key, struct text *value)
{
	const char *p = *at;
	for (;;) {
		while (blank(*p))
			p++;
		if (*p != ',')
			break;
		p++;
	}
	if (!*p)
		return 0;
	size_t n = strcspn(p, ","), k = strcspn(p, "=");
	*at = p + n;
	if (k >= n || !decode(p, k, key) || !key->n || !decode(p + k + 1, n - k - 1, value))
		return -1;
	return 1;
}

/* Any error voids the whole variable (OpenTelemetry's specification, resource/sdk.md). */
static bool attributes_are_good(void)
{
	static struct text key, value;
	const char *p = attributes;
	int r;
	while ((r = member(&p, &key, &value)) > 0)
		;
	return r == 0;
}

/* The last member with a key counts; keys occur once in a resource. */
static bool comes_again(const char *p, const struct text *key)
{
	static struct text other, value;
	while (member(&p, &other, &value) > 0)
		if (other.n == key->n && !memcmp(other.bytes, key->bytes, key->n))
			return true;
	return false;
}

/* ---------------------------------------------------------------- the resource */

struct attribute {
	const char *key, *text;
	int64_t number;
	bool yields; /* to the same key in OTEL_RESOURCE_ATTRIBUTES */
	bool there;
};

/* A whole number as a number, anything else as it is. */
static struct attribute number_or_text(const char *key, const char *s)
{
	struct attribute a = {.key = key, .text = s, .there = *s};
	size_t sign = *s == '-' || *s == '+', n = strspn(s + sign, "0123456789");
	if (n && n <= 18 && !s[sign + n]) {
		a.text = NULL;
		a.number = strtoll(s, NULL, 10);
	}
	return a;
}

static const char *executable_name(void)
{
	const char *slash = strrchr(executable, '/');
	return slash ? slash + 1 : executable;
}

/* OTEL_SERVICE_NAME, else service.name of the variable, else what the conventions name for it. */
static const char *service_fallback(char *to, size_t cap)
{
	strcpy(to, "unknown_service");
	if (*executable && strlen(executable_name()) + 17 < cap) {
		strcat(to, ":");
		strcat(to, executable_name());
	}
	return to;
}

/* Encodes the context; where it begins. The keys are those of the semantic conventions and, with heapwire., of
 * exporter/sink/resource.go. */
static const unsigned char *encode(size_t *size)
{
	static struct text key, value;
	char fallback[512];
	const char *python = hw_py_version();
	struct attribute own[] = {
		{.key = "service.name", .text = *service ? service : service_fallback(fallback, sizeof fallback), .yields = !*service,
		 .there = true},
		{.key = "host.name", .text = host, .yields = true, .there = *host},
		{.key = "process.pid", .number = getpid(), .there = true},
		{.key = "process.executable.path", .text = executable, .there = *executable},
		{.key = "process.executable.name", .text = executable_name(), .there = *executable},
		{.key = "process.runtime.name", .text = "cpython", .there = *python},
		{.key = "process.runtime.version", .text = python, .there = *python},
		number_or_text("heapwire.rank", place[0]),
		number_or_text("heapwire.local_rank", place[1]),
		number_or_text("heapwire.world_size", place[2]),
	};
	const size_t nown = sizeof own / sizeof *own;
	used = PREFIX;
	dropped = 0;
	const char *p = attributes_are_good() ? attributes : "";
	while (member(&p, &key, &value) > 0) {
		if (comes_again(p, &key))
			continue;
		bool taken = false, empty_name = key.n == 12 && !memcmp(key.bytes, "service.name", 12) && !value.n;
		for (size_t i = 0; i < nown; i++) {
			if (own[i].there && strlen(own[i].key) == key.n && !memcmp(own[i].key, key.bytes, key.n)) {
				taken = !own[i].yields || empty_name;
				own[i].there = taken;
			}
		}
		if (!taken)
			put_attribute(key.bytes, key.n, value.bytes, value.n, 0);
	}
	for (size_t i = 0; i < nown; i++) {
		if (!own[i].there)
			continue;
		if (own[i].text)
			value.n = clean(own[i].text, strlen(own[i].text), value.bytes);
		put_attribute(own[i].key, strlen(own[i].key), own[i].text ? value.bytes : NULL, value.n, own[i].number);
	}
	if (dropped) {
		payload[used++] = RESOURCE_DROPPED;
		put_varint(dropped);
	}
	size_t end = used, length = end - PREFIX, begin = PREFIX - 1 - varint_size(length);
	used = begin;
	payload[used++] = CONTEXT_RESOURCE;
	put_varint(length);
	*size = end - begin;
	return payload + begin;
}

_Static_assert(PAYLOAD_MAX < 1 << 21, "the resource's length has three bytes");

/* ---------------------------------------------------------------- the mapping */

/* A mapping of a memory file shows its name where the kernel can't name anonymous ones. ftruncate beyond RLIMIT_FSIZE would
 * raise SIGXFSZ. */
static int memory_file(size_t size)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur < size)
		return -1;
	int fd = hw_memory_file("OTEL_CTX", MFD_ALLOW_SEALING);
	if (fd >= 0 && ftruncate(fd, (off_t)size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

/* In the order that the specification lays down; 0 or errno. */
static int publish(void)
{
	size_t n;
	const unsigned char *bytes = encode(&n);
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (sizeof(struct header) + n + page - 1) / page * page;
	int fd = memory_file(size);
	struct header *h = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);
	int err = errno;
	if (fd >= 0)
		close(fd);
	if (h == MAP_FAILED)
		return err;
	if (madvise(h, size, MADV_DONTFORK)) { /* a child is another process, and publishes for itself */
		err = errno;
		munmap(h, size);
		return err;
	}
	memcpy(h + 1, bytes, n);
	memcpy(h->signature, "OTEL_CTX", 8);
	h->version = 2;
	h->payload_size = (uint32_t)n;
	h->payload = (uint64_t)(uintptr_t)(h + 1);
	struct timespec t;
	clock_gettime(CLOCK_BOOTTIME, &t);
	atomic_thread_fence(memory_order_seq_cst);
	atomic_store(&h->published_ns, (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec);
	/* Always: it is also how a reader that watches prctl learns of it. */
	if (prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, h, size, "OTEL_CTX") && fd < 0) {
		err = errno;
		munmap(h, size); /* nobody could find it */
		return err;
	}
	return 0;
}

/* ---------------------------------------------------------------- */

static void copy_variable(char *to, size_t cap, const char *name)
{
	const char *v = name ? secure_getenv(name) : NULL;
	size_t n = v ? strlen(v) : 0;
	if (n >= cap)
		n = 0; /* a cut value would be a wrong one */
	memcpy(to, v ? v : "", n);
	to[n] = 0;
}

static void copy_environment(void)
{
	copy_variable(service, sizeof service, "OTEL_SERVICE_NAME");
	copy_variable(attributes, sizeof attributes, "OTEL_RESOURCE_ATTRIBUTES");
	/* One launcher's variables, the most specific one's, as in exporter/sink/identity.go. */
	static const char *const launchers[][3] = {
		{"RANK", "LOCAL_RANK", "WORLD_SIZE"},
		{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
		{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
		{"PMI_RANK", NULL, "PMI_SIZE"},
	};
	for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
		copy_variable(place[0], sizeof place[0], launchers[i][0]);
		if (!place[0][0])
			continue;
		copy_variable(place[1], sizeof place[1], launchers[i][1]);
		copy_variable(place[2], sizeof place[2], launchers[i][2]);
		break;
	}
}

static void in_child(void)
{
	int keep = errno;
	publish();
	errno = keep;
}

void hw_otelctx_init(void)
{
	if (!hw_config.otel_ctx)
		return;
	copy_environment();
	if (gethostname(host, sizeof host - 1))
		host[0] = 0;
	ssize_t n = readlink("/proc/self/exe", executable, sizeof executable - 1);
	executable[n > 0 ? n : 0] = 0;
	int err = publish();
	if (err) {
		hw_say("no process context for OpenTelemetry: %s", strerror(err));
		return;
	}
	pthread_atfork(NULL, NULL, in_child);
}
