/* The process context: what is encoded for an environment, whole and bounded, and how it is published. */
#include "../../src/otelctx.c"

#include "check.h"

#include <stdio.h>

struct hw_config hw_config;

static const char *python = "3.11.7";

const char *hw_py_version(void)
{
	return python;
}

/* ---------------------------------------------------------------- a reader of its own */

struct field {
	unsigned number, type;
	uint64_t v; /* of a varint; a length otherwise */
	const unsigned char *p;
};

static bool varint(const unsigned char **p, const unsigned char *end, uint64_t *v)
{
	*v = 0;
	for (unsigned shift = 0; *p < end && shift < 64; shift += 7) {
		unsigned char c = *(*p)++;
		*v |= (uint64_t)(c & 0x7f) << shift;
		if (c < 0x80)
			return true;
	}
	return false;
}

static bool next_field(const unsigned char **p, const unsigned char *end, struct field *f)
{
	uint64_t tag;
	if (!varint(p, end, &tag) || !varint(p, end, &f->v))
		return false;
	f->number = (unsigned)(tag >> 3);
	f->type = tag & 7;
	f->p = *p;
	if (f->type == 2) {
		if (f->v > (uint64_t)(end - *p))
			return false;
		*p += f->v;
	}
	return f->type == 0 || f->type == 2;
}

/* The context as "key=value;" in order, numbers with a # before them; "broken" if it is not to be read. */
static const char *text(void)
{
	static char all[PAYLOAD_MAX * 2];
	size_t size, k = 0;
	const unsigned char *p = encode(&size), *end = p + size;
	struct field context, pair, key, value, inner;
	if (!next_field(&p, end, &context) || context.number != 1 || p != end)
		return "broken";
	for (p = context.p, end = p + context.v; p < end;) {
		if (!next_field(&p, end, &pair))
			return "broken";
		if (pair.number == 2) {
			k += (size_t)sprintf(all + k, "dropped %llu;", (unsigned long long)pair.v);
			continue;
		}
		const unsigned char *q = pair.p, *e = q + pair.v;
		if (pair.number != 1 || !next_field(&q, e, &key) || key.number != 1 || !next_field(&q, e, &value) ||
		    value.number != 2 || q != e)
			return "broken";
		q = value.p;
		e = q + value.v;
		if (!next_field(&q, e, &inner) || q != e || inner.number != (inner.type == 2 ? 1u : 3u))
			return "broken";
		k += (size_t)sprintf(all + k, "%.*s=", (int)key.v, key.p);
		k += inner.type == 2 ? (size_t)sprintf(all + k, "%.*s;", (int)inner.v, inner.p)
				     : (size_t)sprintf(all + k, "#%lld;", (long long)inner.v);
	}
	all[k] = 0;
	return all;
}

static void is(const char *name, const char *variable, const char *want)
{
	strcpy(service, name);
	strcpy(attributes, variable);
	const char *got = text();
	CHECK(!strcmp(got, want), "OTEL_SERVICE_NAME=%s OTEL_RESOURCE_ATTRIBUTES=%s: %s, want %s", name, variable, got, want);
}

/* ---------------------------------------------------------------- */

static void resources(void)
{
	char pid[32], want[512];
	python = "";
	*host = *executable = 0;
	memset(place, 0, sizeof place);
	snprintf(pid, sizeof pid, "process.pid=#%d;", (int)getpid());
#define WITH(format) (snprintf(want, sizeof want, format, pid), want)
	is("", "", WITH("service.name=unknown_service;%s"));
	is("a b", "", WITH("service.name=a b;%s"));
	is("", "service.name=x", WITH("service.name=x;%s"));
	is("a", "service.name=x", WITH("service.name=a;%s"));
	is("", "service.name=", WITH("service.name=unknown_service;%s"));
	is("a", "k=v,l=w", WITH("k=v;l=w;service.name=a;%s"));
	is("a", " k = v ,, l=,", WITH("k=v;l=;service.name=a;%s"));
	is("a", "k=1,k=2,l=w,k=3", WITH("l=w;k=3;service.name=a;%s"));
	is("a", "k=v=w", WITH("k=v=w;service.name=a;%s"));
	is("a", "k%2Ce%3Dy=a%2cb%20c", WITH("k,e=y=a,b c;service.name=a;%s"));
	is("a", "k=%C3%A4\xc3\xa4", WITH("k=\xc3\xa4\xc3\xa4;service.name=a;%s"));
	is("a", "k=%ff%C3x\xe2\x82", WITH("k=\xef\xbf\xbd\xef\xbf\xbdx\xef\xbf\xbd\xef\xbf\xbd;service.name=a;%s"));
	is("a", "process.pid=1,host.name=h", WITH("host.name=h;service.name=a;%s"));
	static const char *const broken[] = {"k", "k=v,l", "=v", "k=v,=w", "k=%", "k=%2", "k=%2x", "k%zz=v", "k=v,l=%%"};
	for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
		is("a", broken[i], WITH("service.name=a;%s"));
	is("a", "%20=x", WITH(" =x;service.name=a;%s"));

	strcpy(host, "node");
	strcpy(executable, "/usr/bin/python3");
	python = "3.11.7";
	strcpy(place[0], "3");
	strcpy(place[1], "x");
	strcpy(place[2], "-12");
	snprintf(want, sizeof want,
		 "service.name=unknown_service:python3;host.name=node;%sprocess.executable.path=/usr/bin/python3;"
		 "process.executable.name=python3;process.runtime.name=cpython;process.runtime.version=3.11.7;heapwire.rank=#3;"
		 "heapwire.local_rank=x;heapwire.world_size=#-12;",
		 pid);
	is("", "", want);
}

static void bounds(void)
{
	memset(place, 0, sizeof place);
	char s[sizeof attributes];
	size_t n = 0;
	for (int i = 0; n + 16 < sizeof s; i++)
		n += (size_t)sprintf(s + n, "k%d=v,", i);
	strcpy(attributes, s);
	CHECK(strcmp(text(), "broken") && !strstr(text(), "dropped"), "as many attributes as a variable holds");
	memset(s, 0xff, sizeof s - 1);
	s[sizeof s - 1] = 0;
	memcpy(s, "k=", 2);
	s[2048] = ',';
	memcpy(s + 2049, "l=", 2);
	strcpy(attributes, s);
	memset(executable, 0xff, sizeof executable - 1);
	const char *t = text();
	CHECK(strcmp(t, "broken") && strstr(t, "dropped 2;") && strstr(t, "process.pid=") && used <= sizeof payload,
	      "what finds no room is counted");
	static const char letters[] = "k=,%2Cf \xc3\xa4\xff";
	uint64_t state = 3;
	int broken = 0;
	*executable = 0;
	for (int i = 0; i < 20000; i++) {
		size_t len = next_random(&state) % 64;
		for (size_t k = 0; k < len; k++)
			attributes[k] = letters[next_random(&state) % (sizeof letters - 1)];
		attributes[len] = 0;
		broken += !strcmp(text(), "broken");
	}
	CHECK(!broken, "%d of random variables gave a message that can't be read", broken);
	*attributes = 0;
}

static bool mapped(char *line, size_t cap)
{
	FILE *f = fopen("/proc/self/maps", "r");
	bool found = false;
	while (f && !found && fgets(line, (int)cap, f))
		found = strstr(line, "OTEL_CTX") != NULL;
	if (f)
		fclose(f);
	return found;
}

static void publishing(void)
{
	char line[512];
	hw_config.otel_ctx = false;
	hw_otelctx_init();
	CHECK(!mapped(line, sizeof line), "nothing unless it is asked for");
	setenv("OTEL_SERVICE_NAME", "unit", 1);
	setenv("SLURM_PROCID", "5", 1);
	setenv("SLURM_NTASKS", "8", 1);
	hw_config.otel_ctx = true;
	hw_otelctx_init();
	CHECK(mapped(line, sizeof line), "a mapping of that name");
	struct header *h = (struct header *)strtoull(line, NULL, 16);
	CHECK(!memcmp(h->signature, "OTEL_CTX", 8) && h->version == 2 && h->published_ns && h->payload == (uint64_t)(uintptr_t)(h + 1),
	      "the header");
	size_t n;
	const unsigned char *p = encode(&n);
	CHECK(n == h->payload_size && !memcmp(p, (void *)(uintptr_t)h->payload, n), "the payload");
	CHECK(strstr(text(), "service.name=unit;") && strstr(text(), "heapwire.rank=#5;heapwire.world_size=#8;"), "is %s", text());
	munmap(h, 4096);
	/* No memory file, as under ulimit -f: an anonymous mapping, where the kernel can name it. */
	struct rlimit limit = {1024, RLIM_INFINITY}, old;
	getrlimit(RLIMIT_FSIZE, &old);
	setrlimit(RLIMIT_FSIZE, &limit);
	int err = publish();
	CHECK(err ? !mapped(line, sizeof line) : mapped(line, sizeof line) && strstr(line, "[anon:OTEL_CTX]"), "%s", strerror(err));
	setrlimit(RLIMIT_FSIZE, &old);
}

int main(void)
{
	resources();
	bounds();
	publishing();
	return checked("otelctx");
}
