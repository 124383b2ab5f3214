/* account.c: the whole process: which part of its resident memory belongs to what.
 *
 * One pass over /proc/self/maps and, for what is mapped there, /proc/self/pagemap, which says of each page whether it is there
 * (Documentation/admin-guide/mm/pagemap.rst). /proc/self/smaps says the same a mapping, but neighbouring anonymous mappings of
 * different owners are one to it, and it holds the lock of the address space for a whole mapping, while pagemap lets go of it
 * every few megabytes: nobody who maps memory waits long.
 *
 * A thread's stack is the mapping that holds its robust list, which glibc keeps in the thread's descriptor at the top of the
 * stack (get_robust_list(2)).
 *
 * Runs on the clock thread. Its tables are static: the memory it accounts for does not change by it.
 */
#include "account.h"

#include "maps.h"
#include "owned.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

const char *const hw_account_keys[HW_PARTS] = {"part_allocator", "part_python_arenas", "part_stacks", "part_heap",
					       "part_files",	 "part_shared",	       "part_other"};

#define PAGE 4096u
#define PAGES_AT_ONCE 4096u
#define PRESENT (1ull << 63)
#define MOST_NS 300000000ull
/* Without PAGEMAP_SCAN: a larger mapping is mostly holes (a sanitizer's, a device's), and is passed over. */
#define LARGEST_READ (64ul << 30)
#define RANGES 40000u
#define STACKS 4096u

/* ---------------------------------------------------------------- mappings by name */

#define NAMES 1024u
#define SHOWN 32u

struct named {
	char name[200]; /* the end of a longer one */
	enum hw_part part;
	uint64_t resident, mapped, count;
};

static struct named names[NAMES];
static unsigned nnames;

static struct named *named(const char *name, enum hw_part part)
{
	size_t n = strlen(name);
	if (n >= sizeof names->name)
		name += n - (sizeof names->name - 1);
	uint32_t h = 2166136261u;
	for (const char *p = name; *p; p++)
		h = (h ^ (unsigned char)*p) * 16777619u;
	for (uint32_t i = 0; i < NAMES; i++) {
		struct named *e = &names[(h + i) % NAMES];
		if (!e->count) {
			if (nnames >= NAMES - NAMES / 8)
				return NULL;
			nnames++;
			strcpy(e->name, name);
			e->part = part;
			return e;
		}
		if (e->part == part && !strcmp(e->name, name))
			return e;
	}
	return NULL;
}

/* ---------------------------------------------------------------- one pass */

static struct hw_range ranges[RANGES];
static size_t nranges, next_range;
static uintptr_t tops[STACKS]; /* an address in each thread's descriptor, sorted */
static unsigned ntops;
static int pagemap = -1;
static uint64_t began, last_at, last_cost;
static bool failed;
static unsigned pool_bytes;

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static int by_address(const void *a, const void *b)
{
	uintptr_t x = *(const uintptr_t *)a, y = *(const uintptr_t *)b;
	return (x > y) - (x < y);
}

static void find_stacks(void)
{
	ntops = 0;
	DIR *d = opendir("/proc/self/task");
	if (!d)
		return;
	for (struct dirent *e; (e = readdir(d)) && ntops < STACKS;) {
		int tid = atoi(e->d_name);
		void *head = NULL;
		size_t size;
		if (tid > 0 && tid != getpid() && !syscall(SYS_get_robust_list, tid, &head, &size) && head)
			tops[ntops++] = (uintptr_t)head;
	}
	closedir(d);
	qsort(tops, ntops, sizeof *tops, by_address);
}

/* Blocks in use of the pools that begin in [at, end), which is there and lies in one arena, by their headers (struct
 * pool_header, Objects/obmalloc.c and Include/internal/pycore_obmalloc.h, the same from 3.8 to 3.15). Read while others write:
 * a figure, not a truth. */
static uint64_t blocks_in_use(uintptr_t at, uintptr_t end)
{
	struct header {
		uint32_t count, pad;
		void *freeblock, *next, *previous;
		uint32_t arena, size_class, next_offset, most_offset;
	} headers[64];
	struct iovec local[64], remote[64];
	uint64_t sum = 0;
	at = (at + pool_bytes - 1) / pool_bytes * pool_bytes;
	while (at < end) {
		unsigned k = 0;
		for (; k < 64 && at < end; k++, at += pool_bytes) {
			local[k] = (struct iovec){&headers[k], sizeof *headers};
			remote[k] = (struct iovec){(void *)at, sizeof *headers};
		}
		ssize_t got = process_vm_readv(getpid(), local, k, remote, k, 0);
		unsigned whole = got < 0 ? 0 : (unsigned)((size_t)got / sizeof *headers);
		for (unsigned j = 0; j < whole; j++) {
			uint64_t size = (headers[j].size_class + 1ull) * 16;
			if (headers[j].size_class < 32 && headers[j].count * size <= pool_bytes - sizeof *headers)
				sum += headers[j].count * size;
		}
	}
	return sum;
}

/* What a mapping's pages are, unless ranges[] has another owner for them. */
struct pass {
	struct hw_account *a;
	enum hw_part part;
	struct named *name;
	bool anonymous;
};

/* [start, end) is there. */
static void present(struct pass *p, uintptr_t start, uintptr_t end)
{
	while (start < end) {
		uintptr_t until = end;
		enum hw_part whose = p->part;
		while (next_range < nranges && ranges[next_range].end <= start)
			next_range++;
		if (p->anonymous && next_range < nranges) {
			const struct hw_range *r = &ranges[next_range];
			if (r->start > start) {
				until = r->start < until ? r->start : until;
			} else {
				until = r->end < until ? r->end : until;
				whose = r->owner == HW_OWNER_ALLOCATOR ? HW_PART_ALLOCATOR
					: r->owner == HW_OWNER_ARENA   ? HW_PART_ARENAS
								       : HW_PART_STACKS;
			}
		}
		uint64_t bytes = until - start;
		p->a->part[whose] += bytes;
		p->a->counted += bytes;
		if (p->name && whose == p->part)
			p->name->resident += bytes;
		if (whose == HW_PART_ARENAS)
			p->a->arena_blocks += blocks_in_use(start, until);
		start = until;
	}
}

/* ioctl PAGEMAP_SCAN, kernel 6.7 and later (include/uapi/linux/fs.h): the ranges whose pages are there, without looking at
 * holes page by page, and without the page of zeros, which is nobody's memory. */
struct page_region {
	uint64_t start, end, categories;
};

struct pm_scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define PAGE_IS_PRESENT (1 << 3)
#define PAGE_IS_PFNZERO (1 << 5)
#define REGIONS 512u

static union {
	uint64_t pages[PAGES_AT_ONCE];
	struct page_region regions[REGIONS];
} seen;
static bool scans = true;

static bool scan_pages(struct pass *p, uintptr_t start, uintptr_t end)
{
	struct pm_scan_arg q = {.size = sizeof q, .start = start, .end = end, .vec = (uintptr_t)seen.regions, .vec_len = REGIONS,
				.category_inverted = PAGE_IS_PFNZERO, .category_mask = PAGE_IS_PRESENT | PAGE_IS_PFNZERO,
				.return_mask = PAGE_IS_PRESENT};
	while (q.start < end) {
		int n = ioctl(pagemap, PAGEMAP_SCAN, &q);
		if (n < 0)
			return errno == EFAULT || errno == EINTR; /* unmapped since */
		for (int i = 0; i < n; i++)
			present(p, seen.regions[i].start, seen.regions[i].end);
		if (q.walk_end <= q.start)
			return true;
		q.start = q.walk_end;
	}
	return true;
}

static void read_pages(struct pass *p, uintptr_t start, uintptr_t end)
{
	while (start < end) {
		size_t n = (end - start) / PAGE;
		n = n < PAGES_AT_ONCE ? n : PAGES_AT_ONCE;
		ssize_t got = pread(pagemap, seen.pages, n * sizeof *seen.pages, (off_t)(start / PAGE * sizeof *seen.pages));
		if (got <= 0)
			return;
		n = (size_t)got / sizeof *seen.pages;
		for (size_t i = 0, k; i < n; i = k) {
			k = i + 1;
			if (!(seen.pages[i] & PRESENT))
				continue;
			while (k < n && seen.pages[k] & PRESENT)
				k++;
			present(p, start + i * PAGE, start + k * PAGE);
		}
		start += n * PAGE;
	}
}

static void count(struct pass *p, uintptr_t start, uintptr_t end)
{
	/* A step is what the lock of the address space is held for; where nothing was, the next one is longer. */
	for (uintptr_t step = 1ul << 30; start < end && !failed;) {
		uint64_t before = p->a->counted;
		step = scans ? step : 16ul << 20;
		uintptr_t until = end - start > step ? start + step : end;
		if (scans && !scan_pages(p, start, until)) {
			scans = false;
			continue;
		}
		if (!scans && end - start > LARGEST_READ)
			return;
		if (!scans)
			read_pages(p, start, until);
		start = until;
		step = p->a->counted == before ? step * 2 : 1ul << 30;
		failed = now() - began > MOST_NS;
	}
}

static bool starts(const char *s, const char *with)
{
	return !strncmp(s, with, strlen(with));
}

/* The part of [start, end) that is the stack of a thread, whose descriptor lies in it: up to the page after the descriptor, or
 * all of it, since what lies above is the guard of another stack, or another owner's. */
static void note_stacks(struct hw_account *a, uintptr_t start, uintptr_t end)
{
	for (unsigned i = 0; i < ntops && tops[i] < end; i++) {
		if (tops[i] < start)
			continue;
		a->stacks++;
		uintptr_t top = (tops[i] | (PAGE - 1)) + 1 + PAGE;
		if (nranges < RANGES)
			ranges[nranges++] = (struct hw_range){start, top < end ? top : end, HW_OWNER_STACK};
	}
}

static bool find_stack(const struct hw_mapping *m, void *arg)
{
	struct pass *p = arg;
	if (!*m->path && !m->closed)
		note_stacks(p->a, m->start, m->end);
	return true;
}

static bool one_mapping(const struct hw_mapping *m, void *arg)
{
	struct pass *p = arg;
	const char *path = m->path;
	/* Not part of resident memory: pages of the kernel's, of devices, and huge ones, which are counted elsewhere. */
	if (m->closed || starts(path, "[v") || starts(path, "/anon_hugepage"))
		return true;
	enum hw_part part = HW_PART_OTHER;
	const char *name = *path == '[' ? path : "";
	bool anonymous = !*path || starts(path, "[anon:");
	if (starts(path, "[stack")) {
		part = HW_PART_STACKS;
		p->a->stacks++;
	} else if (!strcmp(path, "[heap]")) {
		part = HW_PART_HEAP;
	} else if (starts(path, "/dev/shm/") || starts(path, "/memfd:") || starts(path, "/SYSV") || starts(path, "/dev/zero") ||
		   starts(path, "[anon_shmem:")) {
		part = HW_PART_SHARED;
		name = path;
	} else if (starts(path, "/dev/")) {
		return true;
	} else if (*path == '/') {
		part = HW_PART_FILES;
		name = path;
	}
	struct named *n = *name && part != HW_PART_STACKS && part != HW_PART_HEAP ? named(name, part) : NULL;
	if (n) {
		n->mapped += m->end - m->start;
		n->count++;
	}
	p->part = part;
	p->name = n;
	p->anonymous = anonymous;
	count(p, m->start, m->end);
	return !failed;
}

bool hw_account(struct hw_account *a)
{
	began = now();
	memset(a, 0, sizeof *a);
	nnames = 0;
	memset(names, 0, sizeof names);
	if (last_at && last_cost * 100 > began - last_at)
		return false;
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (pagemap < 0)
		return false;
	failed = false;
	next_range = 0;
	nranges = hw_owned_ranges(ranges, RANGES, &a->lost);
	for (size_t i = 0; i < nranges; i++)
		if (ranges[i].owner == HW_OWNER_ARENA)
			a->arena_bytes += ranges[i].end - ranges[i].start;
	size_t one = hw_owned_arena_bytes();
	a->arenas = one ? a->arena_bytes / one : 0;
	pool_bytes = one > 256u << 10 ? 16u << 10 : 4u << 10;
	find_stacks();
	struct pass p = {.a = a};
	hw_maps_each(find_stack, &p);
	nranges = hw_owned_sort(ranges, nranges);
	hw_maps_each(one_mapping, &p);
	close(pagemap);
	pagemap = -1;
	last_at = now();
	last_cost = last_at - began;
	return !failed && a->counted;
}

void hw_account_forked(void)
{
	if (pagemap >= 0)
		close(pagemap);
	pagemap = -1;
	last_at = last_cost = 0;
}

static int by_resident(const void *a, const void *b)
{
	const struct named *x = a, *y = b;
	return x->resident < y->resident ? 1 : x->resident > y->resident ? -1 : strcmp(x->name, y->name);
}

void hw_account_mappings(struct hw_out *o)
{
	qsort(names, NAMES, sizeof *names, by_resident);
	hw_out_str(o, "HEAPWIRE_MAPPINGS: 1\n");
	for (unsigned i = 0; i < SHOWN && names[i].resident; i++) {
		const struct named *e = &names[i];
		hw_out_str(o, hw_account_keys[e->part] + strlen("part_"));
		hw_out_char(o, '\t');
		hw_out_dec(o, e->resident);
		hw_out_char(o, '\t');
		hw_out_dec(o, e->mapped);
		hw_out_char(o, '\t');
		hw_out_dec(o, e->count);
		hw_out_char(o, '\t');
		hw_out_escaped(o, e->name, strlen(e->name));
		hw_out_char(o, '\n');
	}
	hw_out_char(o, '\n');
}
