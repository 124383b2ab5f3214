/* C functions between Python frames: each calls the function that it is given. Built as a library for chains.py. */
#define BETWEEN(name, bytes)                            \
	__attribute__((noinline)) int name(int (*f)(void)) \
	{                                               \
		volatile char room[bytes];              \
		room[0] = 1;                            \
		int r = f();                            \
		return r + room[0] - 1;                 \
	}

BETWEEN(between_a, 16)
BETWEEN(between_b, 5000)
BETWEEN(between_c, 200)
