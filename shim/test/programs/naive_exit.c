/* A last dump as one would write it first: taken by the thread that calls _exit, where it stands. Preloaded in front of a
 * jemalloc of its own.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

static int (*control)(const char *, void *, size_t *, void *, size_t);

__attribute__((constructor)) static void start(void)
{
	*(void **)&control = dlsym(RTLD_DEFAULT, "mallctl");
}

void _exit(int status)
{
	const char *path = "/dev/null";
	if (control)
		control("prof.dump", NULL, NULL, &path, sizeof path);
	for (;;)
		syscall(SYS_exit_group, status);
}
