/* start.c: the constructor: is this process a target, and if so, everything in order.
 *
 * Runs before main, on the only thread. In a process that is no target it reads the environment, looks one symbol up and
 * returns: no thread, no file, no message.
 */
#include "alloc.h"
#include "clock.h"
#include "config.h"
#include "dump.h"
#include "exec.h"
#include "exit.h"
#include "fork.h"
#include "giant.h"
#include "identity.h"
#include "inproc.h"
#include "native.h"
#include "owned.h"
#include "otelctx.h"
#include "out.h"
#include "pyframes.h"
#include "pyobjects.h"
#include "sample.h"
#include "triggers.h"

#include <string.h>
#include <unistd.h>

static void python_frames(int py)
{
	if (!py || !hw_config.python_frames)
		return;
	const char *why = hw_py_enable();
	if (why)
		hw_say("Python %s: %s; stacks have native frames only", hw_py_version(), why);
}

__attribute__((constructor)) static void start(void)
{
	hw_config_read();
	hw_alloc_tune();
	hw_exec_init();
	if (!hw_config.enabled || hw_config.target == HW_TARGET_NONE)
		return;
	int py = hw_py_find();
	if (!py && hw_config.target != HW_TARGET_ALL)
		return;
	hw_config_complain();
	const char *why = hw_native_init();
	if (!why)
		why = hw_alloc_check();
	if (!why && !hw_sample_init())
		why = "no memory for the sampling hook";
	if (why) {
		hw_say("not profiling: %s", why);
		return;
	}
	python_frames(py);
	if (py)
		hw_owned_init();
	hw_identity_environment();
	hw_identity.pid = (int)getpid();
	hw_dump_begin();
	hw_exit_init();
	hw_fork_init();
	hw_inproc_init();
	why = hw_alloc_start();
	if (why) {
		hw_say("not profiling: %s", why);
		return;
	}
	hw_objects_start();
	if (hw_config.giant_bytes)
		hw_giant_bytes = hw_config.giant_bytes;
	hw_triggers_signal_init();
	hw_otelctx_init();
	hw_clock_start();
}
