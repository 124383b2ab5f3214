#ifndef HW_OUT_H
#define HW_OUT_H

#include "shim.h"

/* One line on stderr, `heapwire[<pid>]: …`, in one write. Never called from the sampling hook. */
void hw_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What an errno means, without a look into the program's locale. */
const char *hw_errno_text(int err);

/* Text into a file descriptor through a caller's buffer. The first failure is kept and everything after it is dropped:
 * check hw_out_end. */
struct hw_out {
	int fd;
	int err; /* errno of the first failed write, 0 while all is well */
	size_t n, cap;
	char *buf;
};

void hw_out_begin(struct hw_out *o, int fd, char *buf, size_t cap);
void hw_out_bytes(struct hw_out *o, const void *p, size_t n);
void hw_out_str(struct hw_out *o, const char *s);
void hw_out_char(struct hw_out *o, char c);
void hw_out_dec(struct hw_out *o, uint64_t v);
void hw_out_hex(struct hw_out *o, uint64_t v);
/* A name as it stands in a line of a section: tab, newline, return and backslash escaped (docs/spool.md). */
void hw_out_escaped(struct hw_out *o, const char *s, size_t n);
int hw_out_end(struct hw_out *o); /* flushes; 0, or the errno of the first failure */

/* Length of the UTF-8 sequence at p, within n bytes; 0 if there is none. */
size_t hw_utf8_len(const unsigned char *p, size_t n);

/* Reads at most cap - 1 bytes of a file and ends them with NUL. Length, or -1 with errno set. For /proc and /sys. */
long hw_read_file(const char *path, char *buf, size_t cap);

/* A file in memory, closed by exec. -1 and errno if there is none to be had. */
int hw_memory_file(const char *name, unsigned flags);

/* A number of /proc/self/stat by its place in proc(5); 0 if it can't be read. */
enum { HW_STAT_START = 22 };
uint64_t hw_stat_field(int field);

/* How many threads the process has, without a descriptor, of which there may be none left; 0 if it can't be told. */
unsigned hw_threads(void);

/* Of all threads of ours, those of the exporter inherit it. */
#define HW_THREAD_NAME "heapwire"

/* Has the process's first thread ended, while the process goes on? And: do all others have our name? */
bool hw_leader_ended(void);
bool hw_only_ours_left(void);

#endif
