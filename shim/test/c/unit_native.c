/* Call frame programs, random and cut: never a read outside, never a rule that is not one. What good ones mean is checked
 * against libgcc's unwinder by frames.py. */
#include "../../src/native.c"

#include "check.h"

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

bool hw_py_is_eval(uintptr_t ip)
{
	(void)ip;
	return false;
}

static struct hw_natwalk walk;

__attribute__((noinline)) static int deep(int n)
{
	volatile char room[200];
	room[0] = (char)n;
	if (n == 0) {
		hw_native_walk(&walk, 0, false);
		return room[0];
	}
	return deep(n - 1) + room[0];
}

static void *on_thread(void *arg)
{
	(void)arg;
	deep(10);
	return NULL;
}

int main(void)
{
	uint64_t seed = 7;
	for (int i = 0; i < 400000; i++) {
		size_t n = next_random(&seed) % 32;
		uint8_t *p = malloc(n ? n : 1);
		for (size_t k = 0; k < n; k++)
			p[k] = (uint8_t)(next_random(&seed) >> (next_random(&seed) % 3 ? 0 : 5));
		struct cie cie = {.code_align = 1, .data_align = -8, .enc = 0x1b};
		struct regs r = {.cfa_reg = 7, .cfa_off = 8}, initial = r;
		run((struct cur){p, p + n, false}, &cie, 0x1000, 0x1000 + next_random(&seed) % 100, &r, i & 1 ? &initial : NULL);
		free(p);
	}
	CHECK(1, "random programs are run within their bounds");

	uint8_t cut[] = {0x0c, 0x07}; /* def_cfa without its offset */
	struct cie cie = {.code_align = 1, .data_align = -8};
	struct regs r = {0};
	CHECK(!run((struct cur){cut, cut + sizeof cut, false}, &cie, 0, 10, &r, NULL), "a cut program is no program");
	uint8_t expr[] = {0x0f, 0x7f, 0x00}; /* def_cfa_expression longer than what is there */
	CHECK(!run((struct cur){expr, expr + sizeof expr, false}, &cie, 0, 10, &r, NULL), "an expression must fit");
	uint8_t leb[] = {0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01};
	struct cur c = {leb, leb + sizeof leb, false};
	uleb(&c);
	CHECK(c.bad, "a number of more than 64 bits is refused");
	struct cur neg = {(const uint8_t *)"\x7f", (const uint8_t *)"\x7f" + 1, false};
	CHECK(sleb(&neg) == -1, "signed numbers keep their sign");

	CHECK(hw_native_init() == NULL, "the rule cache can be mapped");
	uintptr_t lo = self_lo, hi = self_hi;
	self_lo = self_hi = 0; /* this program is one object: its own frames are wanted here */
	deep(20);
	CHECK(walk.total >= 23 && !walk.ended_early, "a recursion of 20 gives at least 23 frames: %u", walk.total);
	deep(500);
	CHECK(walk.total >= 503 && walk.root[(walk.total - 1) % HW_KEEP_ROOT] != 0, "a deep stack is followed to its root: %u",
	      walk.total);
	pthread_t t;
	pthread_create(&t, NULL, on_thread, NULL);
	pthread_join(t, NULL);
	CHECK(walk.total >= 12, "a thread's stack has its frames: %u", walk.total);
	unsigned frames = walk.total;
	CHECK(!hw_native_uses_list() && hw_native_use_list() == NULL && hw_native_uses_list(), "the list of modules can be made");
	atomic_fetch_add(&generation, 1); /* nothing is remembered */
	pthread_create(&t, NULL, on_thread, NULL);
	pthread_join(t, NULL);
	CHECK(walk.total == frames && !walk.ended_early, "the list finds the same frames as the loader's: %u and %u", walk.total, frames);
	void *library = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL); /* a part of the C library that nobody has loaded yet */
	uintptr_t inside = library ? (uintptr_t)((struct link_map *)library)->l_ld : 0;
	CHECK(inside && !eh_frame_hdr(inside), "a library that came since is not in the list");
	hw_native_refresh();
	CHECK(eh_frame_hdr(inside), "the first refresh after the start puts it in");
	if (library)
		dlclose(library);
	CHECK(work_out(inside).kind == KIND_BAD, "its tables are not read when they have gone");
	const struct modules *listed = modules;
	hw_native_refresh();
	CHECK(modules != listed && modules->n < listed->n, "and the next one takes it out");
	loaded++;
	const struct modules *before_list = modules;
	hw_native_refresh();
	CHECK(modules != before_list && modules->n == before_list->n, "other code gives a new list");
	CHECK(work_out(0x1000).kind == KIND_BAD, "an address in no object has no rule");
	CHECK(work_out((uintptr_t)&walk).kind == KIND_BAD, "data has no rule");
	self_lo = lo;
	self_hi = hi;
	CHECK(hw_native_is_self((uintptr_t)&deep) && hw_native_is_loader(getauxval(AT_BASE) + 0x1000) &&
		      !hw_native_is_self(getauxval(AT_BASE) + 0x1000),
	      "the extents of this object and of the loader are known");
	uint64_t before = generation;
	hw_native_refresh();
	hw_native_refresh();
	CHECK(generation == before && loaded, "without a change the rules stay");
	return checked("native");
}
