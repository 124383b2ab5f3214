/* api.c: what a program may ask of the library by name, through dlsym or ctypes.
 *
 * In the calling thread, outside malloc.
 */
#include "shim.h"

#include "clock.h"
#include "config.h"

#include <errno.h>

/* Takes a dump now (reason `api`) and waits until it lies in the spool. 0, or the errno of what went wrong; ESRCH where the
 * process is not profiled. */
HW_EXPORT int heapwire_dump(void);

HW_EXPORT int heapwire_dump(void)
{
	return hw_clock_request(false, 30000, 30000);
}
