/* api.c: what a program may ask of the library by name, through dlsym or ctypes.
 *
 * In the calling thread, outside malloc.
 */
#include "shim.h"

#include "clock.h"
#include "config.h"
#include "dump.h"

#include <errno.h>

/* Takes a dump now (reason `api`) and waits until it lies in the spool. 0, or the errno of what went wrong; ESRCH where the
 * process is not profiled. */
HW_EXPORT int heapwire_dump(void);

/* The same, with what the dump is to say set it off: UTF-8, at most 95 bytes of it. */
HW_EXPORT int heapwire_dump_why(const char *why);

/* Is this process profiled? 0, or ESRCH. */
HW_EXPORT int heapwire_profiled(void);

/* Where the program's next file goes (docs/spool.md): "<folder of the process>/<number>", to which it adds the rest of the name.
 * Makes the folder. 0, or the errno of what went wrong; ESRCH where the process is not profiled, ERANGE where `path` is too
 * small. */
HW_EXPORT int heapwire_place(char *path, size_t size);

/* The training step that later dumps name. */
HW_EXPORT void heapwire_step(uint64_t step);

HW_EXPORT int heapwire_dump(void)
{
	return hw_clock_request(false, 30000, 30000);
}

HW_EXPORT int heapwire_dump_why(const char *why)
{
	hw_clock_why(why);
	return heapwire_dump();
}

HW_EXPORT int heapwire_profiled(void)
{
	return hw_clock_started() ? 0 : ESRCH;
}

HW_EXPORT int heapwire_place(char *path, size_t size)
{
	return hw_clock_started() ? hw_dump_place(path, size) : ESRCH;
}

HW_EXPORT void heapwire_step(uint64_t step)
{
	hw_dump_step(step);
}
