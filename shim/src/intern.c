/* intern.c: which Python function is it? A table from (file, qualified name, first line) to a small number.
 *
 * Runs in the sampling hook, on any thread, with any lock of the program held by anybody: no lock, no allocation, no
 * waiting. A slot is claimed by one compare-and-swap of its hash; its number is the function's id, so no reader waits for
 * a writer. Whoever finds a claimed slot without text copies the text and publishes its offset by another
 * compare-and-swap: a lost race wastes one record, and a thread that vanished in between (fork) is made up for by the
 * next finder. Nothing is ever removed or moved.
 *
 * Keyed by content, because code objects are freed and their addresses used again at once: a table keyed by address
 * names up to 298 of 300 functions wrongly (measured on 3.13).
 *
 * Equality is equality of 64-bit hashes: with 2^17 functions the chance of one wrong name is 2^-31.
 */
#include "intern.h"

#include <string.h>
#include <sys/mman.h>

struct slot {
	_Atomic uint64_t hash; /* 0: free */
	_Atomic uint64_t text; /* offset of the record in the arena, 0: not there yet */
};

struct record {
	uint32_t first_line, file_len, name_len;
	char data[]; /* file, name */
};

#define PROBES 64
#define ARENA_BYTES (48ull << 20) /* reserved, not committed: about 100 bytes a function are touched */
#define FILE_MAX 4096             /* bytes of text kept; Linux's PATH_MAX */
#define NAME_MAX_BYTES 1024

static struct slot *table;
static char *arena;
static _Atomic uint64_t arena_top;

bool hw_intern_init(void)
{
	int prot = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	void *t = mmap(NULL, sizeof *table * HW_TABLE_SIZE, prot, flags, -1, 0);
	if (t == MAP_FAILED)
		return false;
	void *a = mmap(NULL, ARENA_BYTES, prot, flags, -1, 0);
	if (a == MAP_FAILED) {
		munmap(t, sizeof *table * HW_TABLE_SIZE);
		return false;
	}
	table = t;
	arena = a;
	atomic_store(&arena_top, 64);
	return true;
}

static inline uint64_t load64(const unsigned char *p)
{
	uint64_t v;
	memcpy(&v, p, sizeof v);
	return v;
}

static uint64_t hash_bytes(const unsigned char *p, size_t n, uint64_t h)
{
	h = hw_mix(h, n);
	for (; n > 16; p += 16, n -= 16)
		h = hw_mix(h ^ load64(p), load64(p + 8));
	if (n >= 8)
		return hw_mix(h ^ load64(p), load64(p + n - 8));
	uint64_t v = 0;
	for (size_t i = 0; i < n; i++)
		v = v << 8 | p[i];
	return hw_mix(h ^ v, n);
}

/* UTF-8 into out, at most cap bytes, whole characters only; returns the length. out NULL only counts. */
static size_t utf8(const struct hw_chars *s, char *out, size_t cap)
{
	if (s->ascii) {
		size_t n = s->len < cap ? s->len : cap;
		if (out)
			memcpy(out, s->p, n);
		return n;
	}
	size_t n = 0;
	for (uint32_t i = 0; i < s->len; i++) {
		uint32_t c = s->kind == 1 ? ((const uint8_t *)s->p)[i]
			     : s->kind == 2 ? ((const uint16_t *)s->p)[i]
					    : ((const uint32_t *)s->p)[i];
		if ((c >= 0xd800 && c < 0xe000) || c > 0x10ffff)
			c = 0xfffd; /* lone surrogates (file names that are no UTF-8) have no UTF-8 form */
		char b[4];
		size_t k;
		if (c < 0x80) {
			b[0] = (char)c;
			k = 1;
		} else if (c < 0x800) {
			b[0] = (char)(0xc0 | c >> 6);
			b[1] = (char)(0x80 | (c & 63));
			k = 2;
		} else if (c < 0x10000) {
			b[0] = (char)(0xe0 | c >> 12);
			b[1] = (char)(0x80 | (c >> 6 & 63));
			b[2] = (char)(0x80 | (c & 63));
			k = 3;
		} else {
			b[0] = (char)(0xf0 | c >> 18);
			b[1] = (char)(0x80 | (c >> 12 & 63));
			b[2] = (char)(0x80 | (c >> 6 & 63));
			b[3] = (char)(0x80 | (c & 63));
			k = 4;
		}
		if (n + k > cap)
			break;
		if (out)
			memcpy(out + n, b, k);
		n += k;
	}
	return n;
}

static void put_text(struct slot *s, const struct hw_chars *file, const struct hw_chars *name, uint32_t first_line)
{
	size_t fl = utf8(file, NULL, FILE_MAX), nl = utf8(name, NULL, NAME_MAX_BYTES);
	uint64_t need = (sizeof(struct record) + fl + nl + 7) & ~7ull;
	/* Once the arena is full it stays full: the test first keeps the top from wrapping round. */
	if (atomic_load_explicit(&arena_top, memory_order_relaxed) + need > ARENA_BYTES) {
		HW_INC(functions_dropped);
		return;
	}
	uint64_t off = atomic_fetch_add_explicit(&arena_top, need, memory_order_relaxed);
	if (off + need > ARENA_BYTES) {
		HW_INC(functions_dropped);
		return;
	}
	struct record *r = (struct record *)(arena + off);
	r->first_line = first_line;
	r->file_len = (uint32_t)utf8(file, r->data, fl);
	r->name_len = (uint32_t)utf8(name, r->data + r->file_len, nl);
	uint64_t none = 0;
	atomic_compare_exchange_strong_explicit(&s->text, &none, off, memory_order_release, memory_order_relaxed);
}

uint32_t hw_intern(const struct hw_chars *file, const struct hw_chars *name, uint32_t first_line)
{
	uint64_t h = hash_bytes(file->p, (size_t)file->len * file->kind, ((uint64_t)first_line << 8) + file->kind);
	h = hash_bytes(name->p, (size_t)name->len * name->kind, h + name->kind);
	if (!h)
		h = 1;
	uint32_t i = (uint32_t)(h >> 20) & (HW_TABLE_SIZE - 1);
	for (int probe = 0; probe < PROBES; probe++, i = (i + 1) & (HW_TABLE_SIZE - 1)) {
		struct slot *s = &table[i];
		uint64_t cur = atomic_load_explicit(&s->hash, memory_order_acquire);
		if (cur == 0) {
			if (atomic_compare_exchange_strong_explicit(&s->hash, &cur, h, memory_order_acq_rel,
								    memory_order_acquire)) {
				HW_INC(functions);
				cur = h;
			}
		}
		if (cur != h)
			continue;
		if (hw_unlikely(atomic_load_explicit(&s->text, memory_order_acquire) == 0))
			put_text(s, file, name, first_line);
		return i + 1;
	}
	HW_INC(functions_dropped);
	return 0;
}

bool hw_intern_get(uint32_t id, struct hw_function *f)
{
	if (!table || id == 0 || id > HW_TABLE_SIZE)
		return false;
	uint64_t off = atomic_load_explicit(&table[id - 1].text, memory_order_acquire);
	if (!off)
		return false;
	const struct record *r = (const struct record *)(arena + off);
	*f = (struct hw_function){r->data, r->data + r->file_len, r->file_len, r->name_len, r->first_line};
	return true;
}
