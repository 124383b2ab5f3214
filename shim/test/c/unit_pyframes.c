/* Line tables, cut anywhere and filled with anything: never a read outside, always a line. What they mean is checked against
 * real interpreters by frames.py. */
#include "../../src/pyframes.c"

#include "check.h"

bool hw_intern_init(void)
{
	return true;
}

uint32_t hw_intern(const struct hw_chars *file, const struct hw_chars *name, uint32_t first_line)
{
	return (uint32_t)(file->len + name->len + first_line > 0);
}

typedef int64_t (*reader)(const uint8_t *, const uint8_t *, int64_t, int64_t);

static int64_t at(reader r, const char *bytes, size_t n, int64_t addr)
{
	/* An exact allocation: the address sanitizer sees any byte too many. */
	uint8_t *p = malloc(n ? n : 1);
	memcpy(p, bytes, n);
	int64_t line = r(p, p + n, addr, 10);
	free(p);
	return line;
}

#ifdef __SANITIZE_ADDRESS__
/* The sanitizer takes a look at memory that is not ours, but there, for a fault. */
static void flip_bits(void)
{
}
#else
/* A thread state with frames, code objects, names and line tables of one layout, in memory of its own, with pages that cannot
 * be read before and behind it. */
#define WORLD (4 * 4096)
static unsigned char *world, pristine[WORLD];
static const char *world_ts;

static void put(size_t at, const void *p)
{
	memcpy(world + at, &p, sizeof p);
}

static size_t put_str(size_t at, const char *s)
{
	put(at + L.ob_type, type_str);
	put(at + L.u_length, (void *)strlen(s));
	put(at + L.u_state, (void *)(uintptr_t)((1 | 1 << 3 | 1 << 4) << L.u_shift));
	memcpy(world + at + L.u_ascii, s, strlen(s));
	return (at + L.u_ascii + strlen(s) + 16) & ~15ul;
}

static void build(const struct hw_layout *l)
{
	L = *l;
	memset(world, 0, WORLD);
	size_t at = 0, frames[8], codes[8];
	world_ts = (const char *)world;
	at = 96;
	size_t cframe = at;
	at += 32;
	for (int i = 0; i < 8; i++) {
		size_t file = at, name, table;
		name = put_str(file, "/app/model/layers.py");
		table = put_str(name, "Attention.forward");
		put(table + L.ob_type, type_bytes);
		put(table + L.ob_size, (void *)60);
		memset(world + table + L.b_data, 0x82, 60);
		codes[i] = (table + L.b_data + 60 + 15) & ~15ul;
		put(codes[i] + L.ob_type, type_code);
		put(codes[i] + L.co_file, world + file);
		put(codes[i] + L.co_qual, world + name);
		put(codes[i] + L.co_lines, world + table);
		frames[i] = codes[i] + 256;
		at = frames[i] + 128;
		put(frames[i] + L.f_code, world + codes[i]);
		if (L.minor >= 11)
			put(frames[i] + L.f_instr, world + codes[i] + L.co_code + 10);
	}
	for (int i = 0; i + 1 < 8; i++)
		put(frames[i] + L.f_back, world + frames[i + 1]);
	if (L.ts_frame)
		put(L.ts_frame, world + frames[0]);
	if (L.ts_cframe) {
		put(L.ts_cframe, world + cframe);
		put(cframe + L.cf_frame, world + frames[0]);
	}
	memcpy(pristine, world, WORLD);
}

static struct hw_pywalk flipped;

static unsigned walk_world(void)
{
	unsigned good = 0;
	memset(&flipped, 0, sizeof flipped);
	if (L.minor <= 10)
		walk_objects(&flipped, world_ts);
	else
		walk_interp(&flipped, world_ts);
	for (uint32_t i = 0; i < flipped.total && i < HW_KEEP_LEAF; i++)
		good += hw_py_encode(&flipped.leaf[i]) != HW_MARK_STOPPED;
	return good;
}

static void flip_bits(void)
{
	unsigned char *m = mmap(NULL, WORLD + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	world = m + 4096;
	mprotect(world, WORLD, PROT_READ | PROT_WRITE);
	uint64_t seed = 99;
	for (size_t l = 0; l < sizeof hw_layouts / sizeof *hw_layouts; l++) {
		build(&hw_layouts[l]);
		CHECK(walk_world() == 8, "3.%d%s: the world as built has its 8 frames", hw_layouts[l].minor, hw_layouts[l].ft ? "t" : "");
		unsigned whole = 0, rounds = 20000;
		for (unsigned i = 0; i < rounds; i++) {
			memcpy(world, pristine, WORLD);
			for (unsigned k = next_random(&seed) % 4 + 1; k; k--)
				world[next_random(&seed) % 6000] ^= (unsigned char)(1u << next_random(&seed) % 8);
			whole += walk_world() == 8;
			if (i % 1000 == 0)
				hw_py_forget_pages();
		}
		CHECK(whole < rounds && whole > rounds / 20, "3.%d: %u of %u flipped worlds still gave 8 frames, none a fault",
		      hw_layouts[l].minor, whole, rounds);
	}
}

#endif

int main(void)
{
	/* 3.8: +6 bytes +1 line, +50 bytes -2 lines */
	CHECK(at(line_lnotab, "\6\1\62\376", 4, 0) == 10 && at(line_lnotab, "\6\1\62\376", 4, 6) == 11 &&
		      at(line_lnotab, "\6\1\62\376", 4, 56) == 9,
	      "lnotab");
	/* 3.10: 4 bytes line +0, 4 bytes none, 4 bytes +3 */
	CHECK(at(line_pep626, "\4\0\4\200\4\3", 6, 0) == 10 && at(line_pep626, "\4\0\4\200\4\3", 6, 4) == 10 &&
		      at(line_pep626, "\4\0\4\200\4\3", 6, 8) == 13,
	      "PEP 626");
	/* 3.11: code 13 (lines +2), one unit; code 15 (none), one unit; code 0 (same line), two units + 1 byte of columns */
	static const char location[] = "\350\4\370\201\0";
	CHECK(at(line_location, location, 5, 0) == 12 && at(line_location, location, 5, 2) == 12 &&
		      at(line_location, location, 5, 4) == 12 && at(line_location, location, 5, 100) == 10,
	      "location table");
	uint64_t seed = 42;
	static const reader readers[] = {line_lnotab, line_pep626, line_location};
	for (int i = 0; i < 300000; i++) {
		char bytes[40];
		size_t n = next_random(&seed) % sizeof bytes;
		for (size_t k = 0; k < n; k++)
			bytes[k] = (char)next_random(&seed);
		at(readers[i % 3], bytes, n, (int64_t)(next_random(&seed) % 200) - 2);
	}
	CHECK(1, "random tables are read within their bounds");

	/* Objects that are none of ours are refused before their fields are read. */
	static uint64_t other_type[64], object[64], code_t[64], str_t[64], bytes_t[64];
	L = hw_layouts[3];
	type_code = (const char *)code_t;
	type_str = (const char *)str_t;
	type_bytes = (const char *)bytes_t;
	static struct line_entry entries[1 << LINE_CACHE_BITS];
	line_cache = entries;
	object[1] = (uint64_t)other_type;
	struct hw_pyframe f = {(const char *)object, 0};
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "a code pointer to something else is refused");
	f.code = (const char *)object + 1;
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "an odd pointer is refused");
	f.code = NULL;
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "no pointer is refused");
	f.code = (const char *)object;
	object[1] = (uint64_t)code_t;
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "a code object without names (half torn down) is refused");
	static uint64_t str[16], bytes[16];
	str[1] = (uint64_t)str_t;
	str[2] = 3;
	str[4] = 1 << 2 | 1 << 5 | 1 << 6;
	memcpy(&str[6], "abc", 3);
	memcpy((char *)object + L.co_file, &(uint64_t){(uint64_t)str}, 8);
	memcpy((char *)object + L.co_qual, &(uint64_t){(uint64_t)str}, 8);
	memcpy((char *)object + L.co_first, &(int32_t){7}, 4);
	CHECK(hw_py_encode(&f) == (HW_TAG | 1ull << HW_LINE_BITS | 7), "a code object without a line table has its first line");
	bytes[1] = (uint64_t)bytes_t;
	bytes[2] = (uint64_t)-5;
	memcpy((char *)object + L.co_lines, &(uint64_t){(uint64_t)bytes}, 8);
	CHECK(hw_py_encode(&f) == (HW_TAG | 1ull << HW_LINE_BITS | 7), "so has one whose line table has no size");
	str[2] = MAX_NAME + 1;
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "a name of absurd length is refused");
	str[2] = 3;
	str[4] = 3 << 2 | 1 << 5;
	CHECK(hw_py_encode(&f) == HW_MARK_STOPPED, "a string of no known kind is refused");

	/* A chain that bites its tail ends. */
	static struct hw_pywalk w;
	static uint64_t ts[64], cf[8], frame[32];
	memcpy((char *)ts + L.ts_cframe, &(uint64_t){(uint64_t)cf}, 8);
	memcpy((char *)cf + L.cf_frame, &(uint64_t){(uint64_t)frame}, 8);
	memcpy((char *)frame + L.f_back, &(uint64_t){(uint64_t)frame}, 8);
	memset(&w, 0, sizeof w);
	walk_interp(&w, (const char *)ts);
	CHECK(w.stopped && w.total == MAX_CHAIN, "a loop in the chain is left after %u frames", w.total);
	memcpy((char *)frame + L.f_back, &(uint64_t){3}, 8);
	memset(&w, 0, sizeof w);
	walk_interp(&w, (const char *)ts);
	CHECK(w.stopped && w.total == 1, "a bad pointer ends the walk and keeps what came before");
	flip_bits();
	return checked("pyframes");
}
