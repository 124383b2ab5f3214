#ifndef HW_INTERN_H
#define HW_INTERN_H

#include "shim.h"

/* A Python frame as one 64-bit value in jemalloc's stack: 0x5079 << 48 | id (26 bits) << 22 | line (22 bits). Never
 * canonical on x86-64 or aarch64, so no code address equals it. */
#define HW_TAG 0x5079000000000000ull
#define HW_LINE_BITS 22
#define HW_LINE_MAX ((1u << HW_LINE_BITS) - 1)
#define HW_MARK_CUT (HW_TAG | 0x0000ffffffffffffull)     /* frames were left out here */
#define HW_MARK_STOPPED (HW_TAG | 0x0000fffffffffffeull) /* the Python walk stopped here */

#define HW_TABLE_BITS 17
#define HW_TABLE_SIZE (1u << HW_TABLE_BITS)

/* A str object's characters as they lie in memory. */
struct hw_chars {
	const void *p;
	uint32_t len;  /* in characters */
	uint8_t kind;  /* bytes a character: 1, 2, 4 */
	uint8_t ascii; /* kind 1 and no byte above 127; else kind 1 is Latin-1 */
};

/* Maps the table and its text; once, before the first sample. False where memory cannot be reserved. */
bool hw_intern_init(void);

/* The function's id, 1 …, or 0 when the table is full (counted). Callable from the sampling hook. */
uint32_t hw_intern(const struct hw_chars *file, const struct hw_chars *name, uint32_t first_line);

/* What is known of an id: false for one without text. The pointers stay valid for ever. */
struct hw_function {
	const char *file, *name; /* UTF-8, not terminated */
	uint32_t file_len, name_len, first_line;
};
bool hw_intern_get(uint32_t id, struct hw_function *f);

static inline uint64_t hw_mix(uint64_t a, uint64_t b)
{
	__uint128_t r = (__uint128_t)(a ^ 0x9E3779B97F4A7C15ull) * (b ^ 0xD1B54A32D192ED03ull);
	return (uint64_t)r ^ (uint64_t)(r >> 64);
}

#endif
