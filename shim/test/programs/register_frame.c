/* Registers unwind tables as a JIT compiler does, with every allocation sampled. libgcc allocates under its own lock there:
 * a hook that unwinds with libgcc waits for that lock for ever. Ends by SIGALRM if it hangs.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern void __register_frame(void *);

/* One CIE and one FDE for a page of code, in .eh_frame's form. */
static uint8_t tables[128] __attribute__((aligned(8)));

static size_t put(uint8_t *at, const void *body, size_t n)
{
	uint32_t len = (uint32_t)n;
	memcpy(at, &len, 4);
	memcpy(at + 4, body, n);
	return n + 4;
}

int main(void)
{
	alarm(10);
	char *code = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	/* id 0, version 1, no augmentation, alignments 1 and -16, return address 16; def_cfa rsp 8; ra at cfa - 16 */
	static const uint8_t cie[] = {0, 0, 0, 0, 1, 0, 1, 0x70, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0, 0, 0};
	size_t n = put(tables, cie, sizeof cie);
	struct {
		uint32_t back;
		uint64_t start, size;
		uint32_t nops;
	} __attribute__((packed)) fde = {(uint32_t)(n + 4), (uint64_t)code, 4096, 0};
	n += put(tables + n, &fde, sizeof fde);
	__register_frame(tables);
	/* libgcc sorts the tables, with allocations under its lock, at the first look for a frame. No allocation may come
	 * before: an unwinding hook would have sorted them then, unharmed. */
	extern void *_Unwind_FindEnclosingFunction(void *);
	void *found = _Unwind_FindEnclosingFunction(code + 10);
	printf("found %d\n", found == (void *)code);
	return found != (void *)code;
}
