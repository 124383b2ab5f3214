/* out.c: bounded text output and small reads, on system calls alone.
 *
 * Runs on the clock thread, in the constructor and on exit; never in the sampling hook. No stdio streams: their locks
 * and buffers belong to the program.
 */
#include "out.h"

#include "descriptors.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

void hw_say(const char *fmt, ...)
{
	int keep = errno;
	char line[1024];
	int n = snprintf(line, sizeof line, "heapwire[%d]: ", (int)getpid());
	va_list ap;
	va_start(ap, fmt);
	int m = vsnprintf(line + n, sizeof line - (size_t)n - 1, fmt, ap);
	va_end(ap);
	if (m > 0)
		n += m;
	if (n > (int)sizeof line - 2)
		n = (int)sizeof line - 2;
	line[n++] = '\n';
	hw_descriptors_write(line, (size_t)n);
	errno = keep;
}

#if !__GLIBC_PREREQ(2, 32) /* which has strerrordesc_np, and does not link this any more */
extern const char *const sys_errlist[];
extern int sys_nerr;
#endif

const char *hw_errno_text(int err)
{
#if __GLIBC_PREREQ(2, 32)
	const char *text = strerrordesc_np(err);
#else
	const char *text = err >= 0 && err < sys_nerr ? sys_errlist[err] : NULL;
#endif
	return text ? text : "unknown error";
}

void hw_out_begin(struct hw_out *o, int fd, char *buf, size_t cap)
{
	*o = (struct hw_out){.fd = fd, .buf = buf, .cap = cap};
}

static void flush(struct hw_out *o)
{
	const char *p = o->buf;
	size_t n = o->n;
	while (n && !o->err) {
		ssize_t w = write(o->fd, p, n);
		if (w < 0) {
			if (errno == EINTR)
				continue;
			o->err = errno ? errno : EIO;
			break;
		}
		p += w;
		n -= (size_t)w;
	}
	o->n = 0;
}

void hw_out_bytes(struct hw_out *o, const void *p, size_t n)
{
	const char *s = p;
	while (n) {
		if (o->n == o->cap)
			flush(o);
		size_t k = o->cap - o->n < n ? o->cap - o->n : n;
		memcpy(o->buf + o->n, s, k);
		o->n += k;
		s += k;
		n -= k;
	}
}

void hw_out_str(struct hw_out *o, const char *s)
{
	hw_out_bytes(o, s, strlen(s));
}

void hw_out_char(struct hw_out *o, char c)
{
	hw_out_bytes(o, &c, 1);
}

void hw_out_escaped(struct hw_out *o, const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		switch (s[i]) {
		case '\t':
			hw_out_str(o, "\\t");
			break;
		case '\n':
			hw_out_str(o, "\\n");
			break;
		case '\r':
			hw_out_str(o, "\\r");
			break;
		case '\\':
			hw_out_str(o, "\\\\");
			break;
		default:
			hw_out_char(o, s[i]);
		}
	}
}

size_t hw_utf8_len(const unsigned char *p, size_t n)
{
	size_t k = *p < 0x80 ? 1 : *p >= 0xc2 && *p < 0xe0 ? 2 : (*p & 0xf0) == 0xe0 ? 3 : *p >= 0xf0 && *p < 0xf5 ? 4 : 0;
	if (k > n)
		return 0;
	for (size_t i = 1; i < k; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((k == 3 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f))) ||
	    (k == 4 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f))))
		return 0;
	return k;
}

static void number(struct hw_out *o, uint64_t v, unsigned base)
{
	char t[20];
	size_t i = sizeof t;
	do {
		t[--i] = "0123456789abcdef"[v % base];
		v /= base;
	} while (v);
	hw_out_bytes(o, t + i, sizeof t - i);
}

void hw_out_dec(struct hw_out *o, uint64_t v)
{
	number(o, v, 10);
}

void hw_out_hex(struct hw_out *o, uint64_t v)
{
	number(o, v, 16);
}

int hw_out_end(struct hw_out *o)
{
	flush(o);
	return o->err;
}

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 8u /* Linux 6.3; where vm.memfd_noexec is 2 there is no file without it */
#endif

int hw_memory_file(const char *name, unsigned flags)
{
	int fd = memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL | flags);
	return fd >= 0 || errno != EINVAL ? fd : memfd_create(name, MFD_CLOEXEC | flags);
}

long hw_read_file(const char *path, char *buf, size_t cap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	size_t n = 0;
	while (n < cap - 1) {
		ssize_t r = read(fd, buf + n, cap - 1 - n);
		if (r < 0 && errno == EINTR)
			continue;
		if (r <= 0)
			break;
		n += (size_t)r;
	}
	buf[n] = 0;
	close(fd);
	return (long)n;
}

/* From the end of field 2, the command's name, which may hold anything: fields count from its last ')'. */
static const char *stat_from_2(char *buf, size_t cap)
{
	return hw_read_file("/proc/self/stat", buf, cap) > 0 ? strrchr(buf, ')') : NULL;
}

/* fs/proc/base.c, proc_task_getattr: two links, as any folder, and one a thread. */
unsigned hw_threads(void)
{
	struct stat st;
	return stat("/proc/self/task", &st) || st.st_nlink < 2 ? 0 : (unsigned)st.st_nlink - 2;
}

bool hw_leader_ended(void)
{
	char buf[1024];
	const char *p = stat_from_2(buf, sizeof buf);
	return p && p[1] == ' ' && p[2] == 'Z';
}

bool hw_only_ours_left(void)
{
	DIR *d = opendir("/proc/self/task");
	bool only = d;
	for (struct dirent *e; only && (e = readdir(d));) {
		char path[64], name[32] = "";
		if (*e->d_name == '.' || atoi(e->d_name) == (int)getpid())
			continue;
		snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", e->d_name);
		only = hw_read_file(path, name, sizeof name) < 0 || !strcmp(name, HW_THREAD_NAME "\n"); /* or it has just ended */
	}
	if (d)
		closedir(d);
	return only;
}

uint64_t hw_stat_field(int field)
{
	char buf[1024];
	const char *p = stat_from_2(buf, sizeof buf);
	for (int at = 2; p && at < field; at++) {
		p = strchr(p, ' ');
		if (p)
			p++;
	}
	return p ? strtoull(p, NULL, 10) : 0;
}
