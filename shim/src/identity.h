#ifndef HW_IDENTITY_H
#define HW_IDENTITY_H

#include "shim.h"

struct hw_identity {
	char host[65];         /* as gethostname gives it, cut */
	char folder[128];      /* <host>-<pid>-<start>, docs/spool.md */
	int pid, parent_pid;
	uint64_t start_ticks;  /* field 22 of /proc/self/stat */
	uint64_t start_unix_nano;
	bool forked;
	uint64_t inherited_bytes, inherited_objects;
};

extern struct hw_identity hw_identity;

/* Copies what is wanted of the environment; in the constructor. */
void hw_identity_environment(void);

/* Who this process is now; the first call in a process reads it. Any thread. */
void hw_identity_read(void);

/* In the child of a fork: somebody else. */
void hw_identity_forked(void);

/* Writes process.json; 0 or errno. */
int hw_identity_write(int fd);

#endif
