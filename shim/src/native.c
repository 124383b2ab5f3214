/* native.c: the native stack, by call frame information with remembered rules.
 *
 * hw_native_walk runs in the sampling hook: inside malloc, on any thread, with any lock of the program held by anybody. No
 * unwinder library is called: libgcc's waits for its own object lock when the allocation comes from __register_frame (JIT
 * compilers), nongnu libunwind's for the loader's lock; both were seen to hang.
 *
 * For each return address the rule (canonical frame address = rsp or rbp + offset; where rbp is saved) is worked out once
 * from .eh_frame through .eh_frame_hdr's sorted table and put into a lossy cache of 2^15 entries, key XOR value against torn
 * writes. Whatever is unusual (DWARF expressions, signal frames, a frame address based on other registers) ends the walk
 * there; the Python frames are added all the same. Format: LSB 5.0, "Exception Frames"; DWARF 5 section 6.4; System V ABI
 * AMD64 figure 3.36 (register numbers 6 = rbp, 7 = rsp, 16 = return address).
 *
 * Objects are found with _dl_find_object, which takes no lock (glibc >= 2.35), and where the C library has none in a list made
 * from /proc/self/maps: at start, and by the clock each second. There the walk ends at code that was loaded since, and before an
 * object's tables are read a system call tells whether they are still those that were listed.
 */
#include "native.h"

#include "intern.h"
#include "maps.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>

enum { KIND_EMPTY, KIND_OK, KIND_BAD, KIND_END };

struct rule {
	int32_t cfa_offset;
	int16_t rbp_offset; /* from the frame address; 0: rbp is kept */
	uint8_t cfa_is_rbp;
	uint8_t kind;
};

union packed {
	struct rule r;
	uint64_t u;
};

struct entry {
	_Atomic uint64_t key, val;
};

#define CACHE_BITS 15
#define MAX_FRAMES 4096u        /* followed, of which HW_KEEP_LEAF + HW_KEEP_ROOT are kept */
#define MAX_FRAME (8u << 20)    /* bytes one frame may span: the usual limit of a whole stack */
#define MAX_STACK (1ull << 30)  /* bytes a stack may span below its known end */

static struct entry *cache;
static _Atomic uint64_t generation; /* of the set of loaded objects; part of the key */
static uintptr_t self_lo, self_hi, loader_lo, loader_hi;
static uint64_t loaded; /* what code is mapped where, as one number; clock thread */

extern void *__libc_stack_end; /* ld.so: where the main thread's stack began */

/* ---------------------------------------------------------------- what code is where */

#define MODULES 4096

struct module {
	uintptr_t lo, hi;
	const uint8_t *eh_frame_hdr;
	uint8_t begins[16]; /* with that: its encodings, where .eh_frame is, how many entries, the first one's function */
};

/* Two lists: one is read in the hook while the clock makes the other, at most once a second, a hundred thousand times longer
 * than a hook looks at one. */
struct modules {
	unsigned n;
	struct module m[MODULES];
};

static struct modules *lists;
static _Atomic(const struct modules *) modules; /* NULL: _dl_find_object serves */

/* struct dl_find_object of glibc's dlfcn.h, which older ones do not have: a library that was built beside one of those uses it where
 * it runs beside a newer one. */
struct found_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *link_map;
	void *eh_frame;
	unsigned long long reserved[7];
};
#ifdef DLFO_STRUCT_HAS_EH_DBASE
_Static_assert(sizeof(struct found_object) == sizeof(struct dl_find_object) &&
		       offsetof(struct found_object, eh_frame) == offsetof(struct dl_find_object, dlfo_eh_frame),
	       "glibc's own");
#endif
extern int find_object(void *, struct found_object *) __asm__("_dl_find_object") __attribute__((weak));

static bool add_module(const struct hw_mapping *m, void *arg)
{
	struct modules *list = arg;
	struct hw_object o;
	struct module *next = &list->m[list->n];
	if (m->path[0] == '/' && list->n < MODULES && hw_maps_object(m, &o) && o.eh_frame_hdr &&
	    hw_maps_read(o.eh_frame_hdr, next->begins, sizeof next->begins)) {
		next->lo = m->start;
		next->hi = o.end;
		next->eh_frame_hdr = (const uint8_t *)o.eh_frame_hdr;
		list->n++;
	}
	return true;
}

static void list_modules(void)
{
	struct modules *next = atomic_load(&modules) == &lists[0] ? &lists[1] : &lists[0];
	next->n = 0;
	hw_maps_each(add_module, next); /* the kernel lists them by address */
	atomic_store(&modules, next);
}

static const uint8_t *eh_frame_hdr(uintptr_t ip)
{
	const struct modules *list = atomic_load_explicit(&modules, memory_order_acquire);
	if (!list) {
		struct found_object o;
		return find_object((void *)ip, &o) == 0 ? o.eh_frame : NULL;
	}
	unsigned lo = 0, hi = list->n;
	while (lo < hi) {
		unsigned mid = lo + (hi - lo) / 2;
		if (list->m[mid].lo <= ip)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (!lo || ip >= list->m[lo - 1].hi)
		return NULL;
	const struct module *m = &list->m[lo - 1];
	uint8_t now[sizeof m->begins];
	return hw_maps_read((uintptr_t)m->eh_frame_hdr, now, sizeof now) && !memcmp(now, m->begins, sizeof now) ? m->eh_frame_hdr : NULL;
}

/* ---------------------------------------------------------------- reading .eh_frame */

/* A cursor that can't leave [p, end): a read past the end sets bad and gives 0. */
struct cur {
	const uint8_t *p, *end;
	bool bad;
};

static uint64_t fixed(struct cur *c, size_t n)
{
	uint64_t v = 0;
	if ((size_t)(c->end - c->p) < n) {
		c->bad = true;
		c->p = c->end;
		return 0;
	}
	memcpy(&v, c->p, n);
	c->p += n;
	return v;
}

static uint64_t uleb(struct cur *c)
{
	uint64_t v = 0;
	for (unsigned s = 0; s < 64; s += 7) {
		uint64_t b = fixed(c, 1);
		v |= (b & 127) << s;
		if (!(b & 128))
			return v;
	}
	c->bad = true;
	return 0;
}

static int64_t sleb(struct cur *c)
{
	uint64_t v = 0;
	for (unsigned s = 0; s < 64;) {
		uint64_t b = fixed(c, 1);
		v |= (b & 127) << s;
		s += 7;
		if (!(b & 128)) {
			if (s < 64 && b & 64)
				v |= ~0ull << s;
			return (int64_t)v;
		}
	}
	c->bad = true;
	return 0;
}

/* A pointer in one of the DW_EH_PE forms; only absolute and pc-relative ones occur in shared objects' .eh_frame. */
static uint64_t encoded(struct cur *c, uint8_t enc)
{
	uint64_t base = (enc & 0x70) == 0x10 ? (uint64_t)c->p : 0;
	if ((enc & 0x70) != 0x10 && (enc & 0x70) != 0) {
		c->bad = true;
		return 0;
	}
	switch (enc & 15) {
	case 0:
	case 4:
	case 12:
		return base + fixed(c, 8);
	case 1:
		return base + uleb(c);
	case 9:
		return base + (uint64_t)sleb(c);
	case 2:
		return base + fixed(c, 2);
	case 10:
		return base + (uint64_t)(int16_t)fixed(c, 2);
	case 3:
		return base + fixed(c, 4);
	case 11:
		return base + (uint64_t)(int32_t)fixed(c, 4);
	}
	c->bad = true;
	return 0;
}

enum { AT_SAME, AT_OFFSET, AT_ELSEWHERE };

struct regs {
	uint64_t cfa_reg; /* 6, 7, or ~0: an expression */
	int64_t cfa_off;
	int rbp, ra; /* AT_… */
	int64_t rbp_off, ra_off;
	bool ra_undefined; /* outermost frame */
};

struct cie {
	uint64_t code_align;
	int64_t data_align;
	uint8_t enc;
	bool augmented;
	struct cur program;
};

/* An offset in units of the CIE's data alignment. Wraps: an offset that big is refused later. */
static int64_t scaled(uint64_t v, const struct cie *cie)
{
	return (int64_t)(v * (uint64_t)cie->data_align);
}

static void saved(struct regs *r, uint64_t reg, int64_t off)
{
	if (reg == 6) {
		r->rbp = AT_OFFSET;
		r->rbp_off = off;
	} else if (reg == 16) {
		r->ra = AT_OFFSET;
		r->ra_off = off;
		r->ra_undefined = false;
	}
}

static void elsewhere(struct regs *r, uint64_t reg)
{
	if (reg == 6)
		r->rbp = AT_ELSEWHERE;
	else if (reg == 16)
		r->ra = AT_ELSEWHERE;
}

/* Runs a CFA program up to address ip; false if it holds something unknown or is cut. */
static bool run(struct cur c, const struct cie *cie, uint64_t loc, uint64_t ip, struct regs *r, const struct regs *initial)
{
	struct regs stack[8];
	unsigned depth = 0;
	while (c.p < c.end && !c.bad) {
		uint8_t op = (uint8_t)fixed(&c, 1);
		uint64_t reg;
		switch (op & 0xc0) {
		case 0x40: /* advance_loc */
			loc += (op & 63) * cie->code_align;
			if (loc > ip)
				return true;
			continue;
		case 0x80: /* offset */
			saved(r, op & 63, scaled(uleb(&c), cie));
			continue;
		case 0xc0: /* restore */
			reg = op & 63;
			goto restore;
		}
		switch (op) {
		case 0x00: /* nop */
			break;
		case 0x01: /* set_loc */
			loc = encoded(&c, cie->enc);
			if (loc > ip)
				return !c.bad;
			break;
		case 0x02: /* advance_loc1, 2, 4 */
		case 0x03:
		case 0x04:
			loc += fixed(&c, op == 4 ? 4 : op - 1u) * cie->code_align;
			if (loc > ip)
				return !c.bad;
			break;
		case 0x05: /* offset_extended */
			reg = uleb(&c);
			saved(r, reg, scaled(uleb(&c), cie));
			break;
		case 0x06: /* restore_extended */
			reg = uleb(&c);
		restore:
			if (!initial)
				return false;
			if (reg == 6) {
				r->rbp = initial->rbp;
				r->rbp_off = initial->rbp_off;
			} else if (reg == 16) {
				r->ra = initial->ra;
				r->ra_off = initial->ra_off;
				r->ra_undefined = initial->ra_undefined;
			}
			break;
		case 0x07: /* undefined */
			reg = uleb(&c);
			if (reg == 16)
				r->ra_undefined = true;
			else if (reg == 6)
				r->rbp = AT_SAME;
			break;
		case 0x08: /* same_value */
			if (uleb(&c) == 6)
				r->rbp = AT_SAME;
			break;
		case 0x09: /* register */
			elsewhere(r, uleb(&c));
			uleb(&c);
			break;
		case 0x0a: /* remember_state */
			if (depth == sizeof stack / sizeof *stack)
				return false;
			stack[depth++] = *r;
			break;
		case 0x0b: /* restore_state */
			if (!depth)
				return false;
			*r = stack[--depth];
			break;
		case 0x0c: /* def_cfa */
			r->cfa_reg = uleb(&c);
			r->cfa_off = (int64_t)uleb(&c);
			break;
		case 0x0d: /* def_cfa_register */
			r->cfa_reg = uleb(&c);
			break;
		case 0x0e: /* def_cfa_offset */
			r->cfa_off = (int64_t)uleb(&c);
			break;
		case 0x0f: { /* def_cfa_expression */
			uint64_t n = uleb(&c);
			if (n > (uint64_t)(c.end - c.p))
				return false;
			c.p += n;
			r->cfa_reg = ~0ull;
			break;
		}
		case 0x10:   /* expression */
		case 0x16: { /* val_expression */
			reg = uleb(&c);
			uint64_t n = uleb(&c);
			if (n > (uint64_t)(c.end - c.p))
				return false;
			c.p += n;
			elsewhere(r, reg);
			break;
		}
		case 0x11: /* offset_extended_sf */
			reg = uleb(&c);
			saved(r, reg, scaled((uint64_t)sleb(&c), cie));
			break;
		case 0x12: /* def_cfa_sf */
			r->cfa_reg = uleb(&c);
			r->cfa_off = scaled((uint64_t)sleb(&c), cie);
			break;
		case 0x13: /* def_cfa_offset_sf */
			r->cfa_off = scaled((uint64_t)sleb(&c), cie);
			break;
		case 0x14: /* val_offset, val_offset_sf */
		case 0x15:
			elsewhere(r, uleb(&c));
			uleb(&c);
			break;
		case 0x2e: /* GNU_args_size */
			uleb(&c);
			break;
		default:
			return false;
		}
	}
	return !c.bad;
}

/* Opens the record at p: a cursor over its body, behind the length. Only 32-bit lengths occur below 4 GiB. */
static struct cur record(const uint8_t *p)
{
	uint32_t len;
	memcpy(&len, p, sizeof len);
	if (len == 0 || len >= 0xfffffff0u)
		return (struct cur){p, p, true};
	return (struct cur){p + 4, p + 4 + len, false};
}

static bool read_cie(const uint8_t *p, struct cie *cie)
{
	struct cur c = record(p);
	if (fixed(&c, 4) != 0) /* the id of a CIE in .eh_frame */
		return false;
	uint8_t ver = (uint8_t)fixed(&c, 1);
	const char *aug = (const char *)c.p;
	while (!c.bad && fixed(&c, 1))
		;
	*cie = (struct cie){.enc = 0};
	cie->code_align = uleb(&c);
	cie->data_align = sleb(&c);
	if (ver == 1)
		fixed(&c, 1);
	else
		uleb(&c);
	if (c.bad)
		return false;
	if (*aug == 'z') {
		cie->augmented = true;
		uint64_t n = uleb(&c);
		if (c.bad || n > (uint64_t)(c.end - c.p))
			return false;
		struct cur a = {c.p, c.p + n, false};
		c.p += n;
		for (const char *s = aug + 1; *s; s++) {
			if (*s == 'R') {
				cie->enc = (uint8_t)fixed(&a, 1);
			} else if (*s == 'P') {
				uint8_t e = (uint8_t)fixed(&a, 1);
				encoded(&a, (uint8_t)(e & 15)); /* the personality routine is only skipped */
			} else if (*s == 'L') {
				fixed(&a, 1);
			} else if (*s == 'S') {
				return false; /* a signal frame: its caller's registers lie in a ucontext */
			}
		}
		if (a.bad)
			return false;
	} else if (*aug) {
		return false;
	}
	cie->program = c;
	return true;
}

/* The entry of .eh_frame_hdr's table whose range may hold ip; NULL if the object has no such table. */
static const uint8_t *find_fde(uintptr_t ip)
{
	const uint8_t *h = eh_frame_hdr(ip);
	/* version 1, table of (sdata4 | datarel) pairs: what every linker writes */
	if (!h || h[0] != 1 || h[2] == 0xff || h[3] != 0x3b)
		return NULL;
	struct cur c = {h + 4, h + 4 + 32, false};
	encoded(&c, h[1]);
	uint64_t n = encoded(&c, h[2]);
	if (c.bad || !n)
		return NULL;
	const uint8_t *t = c.p;
	int64_t rel = (int64_t)ip - (int64_t)h;
	uint64_t lo = 0, hi = n;
	int32_t at;
	while (hi - lo > 1) {
		uint64_t mid = lo + (hi - lo) / 2;
		memcpy(&at, t + 8 * mid, sizeof at);
		if (at <= rel)
			lo = mid;
		else
			hi = mid;
	}
	memcpy(&at, t + 8 * lo, sizeof at);
	if (at > rel)
		return NULL;
	memcpy(&at, t + 8 * lo + 4, sizeof at);
	return h + at;
}

static struct rule work_out(uintptr_t ip)
{
	const struct rule bad = {.kind = KIND_BAD};
	const uint8_t *f = find_fde(ip);
	if (!f)
		return bad;
	struct cur c = record(f);
	const uint8_t *id_at = c.p;
	int64_t back = (int32_t)fixed(&c, 4);
	struct cie cie;
	if (c.bad || !back || !read_cie(id_at - back, &cie))
		return bad;
	uint64_t start = encoded(&c, cie.enc);
	uint64_t size = encoded(&c, (uint8_t)(cie.enc & 15));
	if (c.bad || ip < start || ip - start >= size)
		return bad;
	if (cie.augmented) {
		uint64_t n = uleb(&c);
		if (c.bad || n > (uint64_t)(c.end - c.p))
			return bad;
		c.p += n;
	}
	struct regs r = {.cfa_reg = ~0ull, .rbp = AT_SAME, .ra = AT_SAME}, initial;
	if (!run(cie.program, &cie, 0, ~0ull, &r, NULL))
		return bad;
	initial = r;
	if (!run(c, &cie, start, ip, &r, &initial))
		return bad;
	if (r.ra_undefined)
		return (struct rule){.kind = KIND_END};
	if ((r.cfa_reg != 6 && r.cfa_reg != 7) || r.cfa_off < 0 || r.cfa_off > MAX_FRAME || r.ra != AT_OFFSET ||
	    r.ra_off != -8 || r.rbp == AT_ELSEWHERE || (r.rbp == AT_OFFSET && (r.rbp_off < -32000 || r.rbp_off >= 0)))
		return bad;
	return (struct rule){(int32_t)r.cfa_off, r.rbp == AT_OFFSET ? (int16_t)r.rbp_off : 0, r.cfa_reg == 6, KIND_OK};
}

static inline struct rule rule_of(uintptr_t ip, uint64_t gen)
{
	uint64_t key = ip ^ gen << 48;
	struct entry *e = &cache[key * 0x9E3779B97F4A7C15ull >> (64 - CACHE_BITS)];
	uint64_t k = atomic_load_explicit(&e->key, memory_order_acquire);
	union packed p = {.u = atomic_load_explicit(&e->val, memory_order_relaxed)};
	if (hw_likely(k == (key ^ p.u) && p.r.kind != KIND_EMPTY))
		return p.r;
	p.r = work_out(ip);
	atomic_store_explicit(&e->val, p.u, memory_order_relaxed);
	atomic_store_explicit(&e->key, key ^ p.u, memory_order_release);
	return p.r;
}

/* ---------------------------------------------------------------- the walk */

/* A bound for the calling thread's stack. Asking pthread_getattr_np allocates and reads /proc; glibc puts a thread's
 * control block, where fs points, at the top of its stack, and the main thread's stack ends at __libc_stack_end. On a stack
 * that user code switched to neither holds, and the bound is only the size a stack may have. */
static uintptr_t stack_end(uintptr_t sp)
{
	uintptr_t tcb = hw_thread_pointer();
	if (sp < tcb && tcb - sp < MAX_STACK)
		return tcb;
	uintptr_t main_end = (uintptr_t)__libc_stack_end;
	if (sp < main_end && main_end - sp < MAX_STACK)
		return main_end;
	return sp + MAX_FRAME;
}

bool hw_native_is_self(uintptr_t ip)
{
	return ip >= self_lo && ip < self_hi;
}

bool hw_native_is_loader(uintptr_t ip)
{
	return ip >= loader_lo && ip < loader_hi;
}

__attribute__((noinline)) void hw_native_walk(struct hw_natwalk *w, uintptr_t boundary, bool until_eval)
{
	w->total = 0;
	w->ended_early = false;
	if (!cache)
		return;
	uintptr_t ip, sp, bp;
	__asm__ volatile("lea 0(%%rip), %0\n\tmov %%rsp, %1\n\tmov %%rbp, %2" : "=r"(ip), "=r"(sp), "=r"(bp));
	ip++; /* looked up at ip - 1, like a return address */
	uint64_t gen = atomic_load_explicit(&generation, memory_order_relaxed);
	uintptr_t end = stack_end(sp);
	bool leaf = true;
	for (unsigned followed = 0; followed < MAX_FRAMES; followed++) {
		/* Here ip is an address in the frame whose stack pointer is sp. Its caller's: */
		struct rule r = rule_of(ip - 1, gen);
		uintptr_t cfa = (r.cfa_is_rbp ? bp : sp) + (uintptr_t)r.cfa_offset;
		bool known = r.kind == KIND_OK && cfa > sp && cfa <= end && cfa - sp <= MAX_FRAME && !(cfa & 7);
		if (leaf && !hw_native_is_self(ip - 1))
			leaf = false;
		if (!leaf) {
			if (boundary && known && boundary >= sp && boundary < cfa)
				return;
			if (until_eval && hw_py_is_eval(ip - 1))
				return;
			if (!w->total)
				w->begins = sp;
			if (w->total < HW_KEEP_LEAF) {
				w->leaf[w->total] = ip;
				w->ends[w->total] = known ? cfa : 0;
			}
			w->root[w->total % HW_KEEP_ROOT] = ip;
			w->total++;
		}
		if (!known) {
			w->ended_early = r.kind != KIND_END;
			return;
		}
		uintptr_t ra, saved_bp = bp;
		memcpy(&ra, (const void *)(cfa - 8), sizeof ra);
		if (r.rbp_offset)
			memcpy(&saved_bp, (const void *)(cfa + (uintptr_t)(intptr_t)r.rbp_offset), sizeof saved_bp);
		if (!ra)
			return;
		ip = ra;
		sp = cfa;
		bp = saved_bp;
	}
}

/* ---------------------------------------------------------------- set-up */

static int extents(struct dl_phdr_info *info, size_t size, void *arg)
{
	(void)size;
	uintptr_t lo = UINTPTR_MAX, hi = 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type != PT_LOAD)
			continue;
		uintptr_t a = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, b = a + info->dlpi_phdr[i].p_memsz;
		lo = a < lo ? a : lo;
		hi = b > hi ? b : hi;
	}
	if ((uintptr_t)&extents >= lo && (uintptr_t)&extents < hi) {
		self_lo = lo;
		self_hi = hi;
	}
	uintptr_t base = *(const uintptr_t *)arg;
	if (base && info->dlpi_addr == base) {
		loader_lo = lo;
		loader_hi = hi;
	}
	return 0;
}

const char *hw_native_init(void)
{
	uintptr_t base = getauxval(AT_BASE);
	dl_iterate_phdr(extents, &base);
	void *m = mmap(NULL, sizeof *cache << CACHE_BITS, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
		       0);
	if (m == MAP_FAILED)
		return "no memory for the unwind rules";
	cache = m;
	return find_object ? NULL : hw_native_use_list();
}

const char *hw_native_use_list(void)
{
	void *m = mmap(NULL, 2 * sizeof *lists, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m == MAP_FAILED)
		return "no memory for the list of modules";
	lists = m;
	list_modules();
	return NULL;
}

bool hw_native_uses_list(void)
{
	return atomic_load(&modules);
}

static bool mix_code(const struct hw_mapping *m, void *arg)
{
	uint64_t *h = arg;
	if (m->executable && m->path[0] == '/')
		*h = hw_mix(*h ^ m->start, m->inode ^ m->offset << 20);
	return true;
}

void hw_native_refresh(void)
{
	uint64_t now = 1;
	hw_maps_each(mix_code, &now);
	if (now == loaded)
		return;
	loaded = now;
	if (hw_native_uses_list())
		list_modules();
	atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}
