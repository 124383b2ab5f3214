#ifndef HW_CONFIG_H
#define HW_CONFIG_H

#include "shim.h"

enum hw_target { HW_TARGET_AUTO, HW_TARGET_ALL, HW_TARGET_NONE };
enum hw_export { HW_INPROC_AUTO, HW_INPROC_ALWAYS, HW_INPROC_OFF };

struct hw_config {
	bool enabled;          /* HEAPWIRE */
	int target;            /* HEAPWIRE_TARGET, an enum hw_target */
	char spool[2048];      /* HEAPWIRE_SPOOL */
	bool spool_is_default; /* nobody named the spool: its owner and mode are checked before use */
	uint64_t interval_ns;  /* HEAPWIRE_INTERVAL, 0: no interval dumps */
	unsigned lg_sample;    /* HEAPWIRE_SAMPLE_BYTES as a power of two */
	bool lg_sample_set;    /* said by the user: wins over MALLOC_CONF */
	bool sample_auto;      /* HEAPWIRE_SAMPLE_BYTES=auto */
	bool lean;             /* HEAPWIRE_ALLOCATOR; alloc.c has looked at it itself, before there was a configuration */
	bool exec_guard;       /* HEAPWIRE_EXEC_GUARD */
	bool otel_ctx;         /* HEAPWIRE_OTEL_CTX */
	bool python_frames;    /* HEAPWIRE_PYTHON_FRAMES */
	bool full_stacks;      /* HEAPWIRE_STACKS */
	int python_objects;    /* HEAPWIRE_PYTHON_OBJECTS, an enum hw_objects */
	bool exit_dump;        /* HEAPWIRE_EXIT_DUMP */
	uint64_t giant_bytes;  /* HEAPWIRE_GIANT, 0: off */
	unsigned pressure[8];  /* HEAPWIRE_PRESSURE, percent, rising */
	unsigned npressure;
	unsigned psi_percent;  /* HEAPWIRE_PSI, 0: off */
	unsigned jump_percent; /* HEAPWIRE_JUMP */
	uint64_t jump_bytes;
	uint64_t gap_ns;       /* HEAPWIRE_GAP */
	int signal;            /* HEAPWIRE_SIGNAL, 0: none */
	int export;            /* HEAPWIRE_EXPORT, an enum hw_export */
};

extern struct hw_config hw_config;

/* Reads the environment. Called once from the constructor; allocates nothing. Values that make no sense are remembered
 * and reported by hw_config_complain, so that a process that is no target stays silent. */
void hw_config_read(void);
void hw_config_complain(void);

/* One row a variable, for tests and for the documentation that is generated from them: NULL past the end. */
const char *hw_config_row(size_t i, const char **type, const char **dflt, const char **bounds, const char **what);

#endif
