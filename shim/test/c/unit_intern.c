/* The function table: content is the key, from any number of threads at once. */
#include "../../src/intern.c"

#include "check.h"

#include <pthread.h>

struct hw_counters hw_count;

static struct hw_chars ascii(const char *s)
{
	return (struct hw_chars){s, (uint32_t)strlen(s), 1, 1};
}

static uint32_t put(const char *file, const char *name, uint32_t line)
{
	struct hw_chars f = ascii(file), n = ascii(name);
	return hw_intern(&f, &n, line);
}

static bool text_is(uint32_t id, const char *file, const char *name, uint32_t line)
{
	struct hw_function f;
	return hw_intern_get(id, &f) && f.file_len == strlen(file) && !memcmp(f.file, file, f.file_len) &&
	       f.name_len == strlen(name) && !memcmp(f.name, name, f.name_len) && f.first_line == line;
}

#define THREADS 8
#define FUNCTIONS 2000
static uint32_t ids[THREADS][FUNCTIONS];

static void *fill(void *arg)
{
	uint32_t *mine = arg;
	for (uint32_t i = 0; i < FUNCTIONS; i++) {
		char name[32];
		sprintf(name, "function_%u", i);
		mine[i] = put("/app/model.py", name, i);
	}
	return NULL;
}

int main(void)
{
	CHECK(hw_intern_init(), "the table can be mapped");
	uint32_t a = put("/app/train.py", "train", 10);
	char copy[] = "/app/train.py";
	CHECK(a && put(copy, "train", 10) == a, "the same text at another address is the same function");
	CHECK(put("/app/train.py", "train", 11) != a, "another first line is another function");
	CHECK(put("/app/train.p", "ytrain", 10) != a, "file and name do not run into each other");
	CHECK(text_is(a, "/app/train.py", "train", 10), "the text comes back");
	struct hw_function f;
	CHECK(!hw_intern_get(0, &f) && !hw_intern_get(HW_TABLE_SIZE + 1, &f), "ids outside of the table have no text");
	uint32_t unused = a == 1 ? 2 : a - 1;
	CHECK(!hw_intern_get(unused, &f), "an id that was never given has no text");

	static const uint8_t latin[] = {'p', 0xe9, 0xff};
	static const uint16_t two[] = {0x444, 'x', 0xd800, 0x20ac};
	static const uint32_t four[] = {0x1f600, 'y', 0x110000};
	struct hw_chars file = {latin, 3, 1, 0}, name = {two, 4, 2, 0};
	CHECK(text_is(hw_intern(&file, &name, 1), "p\xc3\xa9\xc3\xbf", "\xd1\x84x\xef\xbf\xbd\xe2\x82\xac", 1),
	      "Latin-1 and two-byte text become UTF-8, a lone surrogate becomes U+FFFD");
	struct hw_chars wide = {four, 3, 4, 0};
	CHECK(text_is(hw_intern(&wide, &wide, 2), "\xf0\x9f\x98\x80y\xef\xbf\xbd", "\xf0\x9f\x98\x80y\xef\xbf\xbd", 2),
	      "four-byte text becomes UTF-8");

	static char huge[3 * NAME_MAX_BYTES];
	memset(huge, 'n', sizeof huge);
	struct hw_chars h = {huge, sizeof huge, 1, 1}, short_file = ascii("f");
	uint32_t id = hw_intern(&short_file, &h, 3);
	CHECK(hw_intern_get(id, &f) && f.name_len == NAME_MAX_BYTES, "a name that is too long is cut");
	static uint16_t euro[NAME_MAX_BYTES];
	for (size_t i = 0; i < NAME_MAX_BYTES; i++)
		euro[i] = 0x20ac;
	struct hw_chars e = {euro, NAME_MAX_BYTES, 2, 0};
	id = hw_intern(&short_file, &e, 4);
	CHECK(hw_intern_get(id, &f) && f.name_len == NAME_MAX_BYTES / 3 * 3, "and never inside a character");

	pthread_t threads[THREADS];
	for (int t = 0; t < THREADS; t++)
		pthread_create(&threads[t], NULL, fill, ids[t]);
	for (int t = 0; t < THREADS; t++)
		pthread_join(threads[t], NULL);
	int differ = 0, wrong = 0;
	for (uint32_t i = 0; i < FUNCTIONS; i++) {
		char n[32];
		sprintf(n, "function_%u", i);
		wrong += !text_is(ids[0][i], "/app/model.py", n, i);
		for (int t = 1; t < THREADS; t++)
			differ += ids[t][i] != ids[0][i];
	}
	CHECK(!differ && !wrong, "threads that meet new functions at once agree: %d differ, %d wrong", differ, wrong);

	uint64_t dropped = HW_GET(functions_dropped);
	uint32_t none = 0;
	for (uint32_t i = 0; i < HW_TABLE_SIZE + 100 && !none; i++)
		if (!put("/app/generated.py", "f", 1000 + i))
			none = 1;
	CHECK(none && HW_GET(functions_dropped) > dropped, "a full table gives id 0 and counts");
	CHECK(put("/app/train.py", "train", 10) == a, "and still knows what it knew");
	return checked("intern");
}
