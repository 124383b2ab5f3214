/* SPDX-License-Identifier: Apache-2.0
 *
 * stacks N: N live blocks from N stacks of about 40 frames, then one dump, while another thread allocates from one more stack.
 * Prints what the dump took and the longest malloc and free of that thread, as JSON; and the longest without a dump, in 200 ms. */
#include <dirent.h>
#include <dlfcn.h>
#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void *volatile kept;
static void *(*volatile left)(unsigned, int), *(*volatile right)(unsigned, int);

/* The path through two functions is the number, bit by bit. */
static __attribute__((noinline)) void *go_left(unsigned n, int depth)
{
	void *p = depth ? (n & 1 ? right : left)(n >> 1, depth - 1) : malloc(2000);
	kept = p; /* no tail call */
	return p;
}

static __attribute__((noinline)) void *go_right(unsigned n, int depth)
{
	void *p = depth ? (n & 1 ? right : left)(n >> 1, depth - 1) : malloc(2000);
	kept = p;
	return p;
}

static volatile int running, stop, measuring;
static double longest;

static void *sampled(void *unused)
{
	while (!stop) {
		double before = now();
		free(left(1u << 30, 35));
		double took = now() - before;
		if (measuring && took > longest)
			longest = took;
		running = 1;
	}
	return unused;
}

int main(int argc, char **argv)
{
	int (*dump)(void);
	*(void **)&dump = dlsym(RTLD_DEFAULT, "heapwire_dump");
	if (argc != 2 || !dump)
		return 2;
	left = go_left;
	right = go_right;
	for (unsigned i = 0, n = (unsigned)atoi(argv[1]); i < n; i++)
		left(i, 35);
	pthread_t t;
	if (pthread_create(&t, NULL, sampled, NULL))
		return 1;
	while (!running) {
	}
	measuring = 1;
	nanosleep(&(struct timespec){0, 200000000}, NULL);
	double control = longest;
	longest = 0;
	double before = now();
	int err = dump();
	double took = now() - before;
	stop = 1;
	pthread_join(t, NULL);
	char pattern[4096];
	snprintf(pattern, sizeof pattern, "%s/*/*.heap", getenv("HEAPWIRE_SPOOL"));
	glob_t found;
	struct stat st;
	if (err || glob(pattern, 0, NULL, &found) || stat(found.gl_pathv[found.gl_pathc - 1], &st))
		return 1;
	unsigned long long metadata = 0;
	FILE *f = fopen(found.gl_pathv[found.gl_pathc - 1], "r");
	for (char line[8192]; f && fgets(line, sizeof line, f);)
		sscanf(line, "metadata=%llu", &metadata);
	printf("{\"dump_s\": %g, \"control_s\": %g, \"pause_s\": %g, \"file_bytes\": %lld, \"metadata_bytes\": %llu}\n", took, control, longest, (long long)st.st_size, metadata);
	return 0;
}
