/* A realloc in front of the allocator's that ends the process when it is called for a block from inside its own call for that
 * block: the loader growing a thread's table of thread-local storage from inside the growing of it (glibc 2.39 and later).
 * Without it the block would be freed twice, and the fault would come later and elsewhere.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static void *(*next_realloc)(void *, size_t);
static __thread void *inside __attribute__((tls_model("initial-exec")));

void *realloc(void *p, size_t n)
{
	if (!next_realloc)
		*(void **)&next_realloc = dlsym(RTLD_NEXT, "realloc");
	if (p && p == inside) {
		static const char words[] = "realloc was called for a block from inside its own call for it\n";
		(void)!write(2, words, sizeof words - 1);
		syscall(SYS_exit_group, 99);
	}
	void *outer = inside;
	inside = p;
	void *q = next_realloc(p, n);
	inside = outer;
	return q;
}
