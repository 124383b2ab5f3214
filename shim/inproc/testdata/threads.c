/* usage: threads iterate [LIBRARY]    a thread's callback of dl_iterate_phdr calls dlopen, as threadpoolctl's does; meanwhile
 *                                     another one loads LIBRARY, or the shim's exporter starts
 *        threads last                 the exporter is there, and main ends, but not the process
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static atomic_int over;

static int callback(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size, (void)arg;
	void *known = strstr(info->dlpi_name, "libc.so") ? dlopen(info->dlpi_name, RTLD_NOLOAD | RTLD_LAZY) : NULL;
	if (known)
		dlclose(known);
	return 0;
}

static void *iterate(void *arg)
{
	while (!over)
		dl_iterate_phdr(callback, arg);
	return NULL;
}

static void *load(void *library)
{
	if (!dlopen(library, RTLD_NOW | RTLD_LOCAL))
		fprintf(stderr, "%s\n", dlerror());
	return NULL;
}

/* Threads named as the shim names its own. */
static int ours(void)
{
	int n = 0;
	DIR *d = opendir("/proc/self/task");
	for (struct dirent *e; d && (e = readdir(d));) {
		char path[300], name[32] = "";
		snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
		FILE *f = fopen(path, "r");
		if (f && fgets(name, sizeof name, f))
			n += !strcmp(name, "heapwire\n");
		if (f)
			fclose(f);
	}
	if (d)
		closedir(d);
	return n;
}

static void await_exporter(void)
{
	while (ours() < 3) {
		char *volatile kept = malloc(100000);
		kept[0] = 1;
		usleep(1000);
	}
}

int main(int argc, char **argv)
{
	pthread_t iterating, loading;
	if (argc > 1 && !strcmp(argv[1], "last")) {
		await_exporter();
		pthread_exit(NULL);
	}
	pthread_create(&iterating, NULL, iterate, NULL);
	if (argc > 2) {
		usleep(20000);
		pthread_create(&loading, NULL, load, argv[2]);
		pthread_join(loading, NULL);
	} else {
		await_exporter();
	}
	over = 1;
	pthread_join(iterating, NULL);
	return 0;
}
