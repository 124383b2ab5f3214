/* usage: jit_frames ROUNDS
 *
 * A JIT compiler again and again: unwind tables for a page of code are registered with libgcc, looked up and taken back,
 * while two other threads allocate and unwind. libgcc allocates under its own lock at the first look-up after a registration:
 * a hook that unwinds with libgcc waits for that lock for ever. Prints a byte a round.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <unwind.h>

extern void __register_frame(void *);
extern void __deregister_frame(void *);
extern void *_Unwind_FindEnclosingFunction(void *);

static volatile int stop;

static _Unwind_Reason_Code one(struct _Unwind_Context *context, void *arg)
{
	(void)context;
	++*(int *)arg;
	return _URC_NO_REASON;
}

static void *others(void *arg)
{
	(void)arg;
	while (!stop) {
		int n = 0;
		void *volatile p = malloc(3000);
		_Unwind_Backtrace(one, &n);
		free(p);
	}
	return NULL;
}

static size_t put(uint8_t *at, const void *body, size_t n)
{
	uint32_t len = (uint32_t)n;
	memcpy(at, &len, 4);
	memcpy(at + 4, body, n);
	return n + 4;
}

int main(int argc, char **argv)
{
	/* A CIE: id 0, version 1, no augmentation, alignments 1 and -16, return address 16; def_cfa rsp 8; ra at cfa - 16. */
	static const uint8_t cie[] = {0, 0, 0, 0, 1, 0, 1, 0x70, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0, 0, 0, 0};
	static uint8_t tables[128] __attribute__((aligned(8)));
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	char *code = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t n = put(tables, cie, sizeof cie);
	struct {
		uint32_t back;
		uint64_t start, size;
		uint32_t nops;
	} __attribute__((packed)) fde = {(uint32_t)(n + 4), (uint64_t)code, 4096, 0};
	put(tables + n, &fde, sizeof fde);
	pthread_t t[2];
	for (int r = 0; r < rounds; r++) {
		/* In the first round no other thread's look-up may sort the tables before ours. */
		if (r == 1)
			for (int i = 0; i < 2; i++)
				if (pthread_create(&t[i], NULL, others, NULL))
					return 1;
		__register_frame(tables);
		void *found = _Unwind_FindEnclosingFunction(code + 10);
		__deregister_frame(tables);
		if (found != (void *)code) {
			printf("not found\n");
			return 1;
		}
		(void)!write(1, ".", 1);
	}
	stop = 1;
	for (int i = 0; i < 2 && rounds > 1; i++)
		pthread_join(t[i], NULL);
	return 0;
}
