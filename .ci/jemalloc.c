// Asks the jemalloc it is linked with whether the shim can be built on it: 5.3.0 or later, with profiling, with the hook
// that lets us take the stack. The hooks are experimental, so that they exist is asked, not concluded from the version.
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

int mallctl(const char *name, void *oldp, size_t *oldlenp, void *newp, size_t newlen);

const char *malloc_conf = "prof:true,prof_active:false";

int main(void)
{
	const char *version = NULL;
	size_t size = sizeof(version);
	int major = 0, minor = 0;
	bool prof = false;
	void *hook = NULL;

	if (mallctl("version", &version, &size, NULL, 0) != 0 || version == NULL) {
		fprintf(stderr, "jemalloc does not tell its version\n");
		return 1;
	}
	if (sscanf(version, "%d.%d", &major, &minor) != 2 || major < 5 || (major == 5 && minor < 3)) {
		fprintf(stderr, "jemalloc %s is too old: 5.3.0 or later is needed\n", version);
		return 1;
	}
	size = sizeof(prof);
	if (mallctl("config.prof", &prof, &size, NULL, 0) != 0 || !prof) {
		fprintf(stderr, "jemalloc %s was built without profiling (--enable-prof)\n", version);
		return 1;
	}
	size = sizeof(hook);
	if (mallctl("experimental.hooks.prof_backtrace", &hook, &size, NULL, 0) != 0) {
		fprintf(stderr, "jemalloc %s has no backtrace hook (experimental.hooks.prof_backtrace)\n", version);
		return 1;
	}
	printf("jemalloc %s with profiling and the backtrace hook\n", version);
	return 0;
}
