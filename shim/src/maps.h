#ifndef HW_MAPS_H
#define HW_MAPS_H

#include "shim.h"

/* One line of /proc/self/maps. */
struct hw_mapping {
	uintptr_t start, end;
	uint64_t offset, inode;
	bool executable, shared, closed; /* closed: neither read nor written */
	const char *path; /* "" for anonymous memory; cut at 4095 bytes */
};

/* Calls each for every mapping, in order of addresses, until it returns false. Clock thread only: it has one buffer. No lock of
 * the dynamic loader is taken, which dl_iterate_phdr would: a callback of the program's that waits for the GIL may hold it. */
void hw_maps_each(bool (*each)(const struct hw_mapping *m, void *arg), void *arg);

/* Copies n bytes from an address of this process that may have gone; false then. */
bool hw_maps_read(uintptr_t at, void *to, size_t n);

/* An ELF file whose first mapping (file offset 0) is m: where it ends in memory, and its GNU build id. False for any other
 * file. */
struct hw_object {
	uintptr_t end;
	uintptr_t eh_frame_hdr; /* address of .eh_frame_hdr, 0: it has none */
	unsigned id_len;	/* 0: it has none */
	unsigned char id[64];
};
bool hw_maps_object(const struct hw_mapping *m, struct hw_object *o);

#endif
