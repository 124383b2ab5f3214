/* exit.c: the last dump of a process that ends by itself.
 *
 * Three ways out, one dump:
 *  - The interpreter's atexit callbacks, before Py_FinalizeEx takes the modules apart: afterwards the leak that is looked
 *    for is freed. The clock thread may not touch Python, so it leaves a pending call (Py_AddPendingCall: callable from any
 *    thread, without the GIL), and the main thread registers the callback at its next bytecode.
 *  - _exit, which multiprocessing workers and torch's data loaders leave by. It is defined here in front of libc's. A child
 *    of vfork that has not exec'ed yet shares this memory: it is known by its pid and passes straight through.
 *  - The library's destructor, for programs that have no interpreter, or ended before it was up.
 *
 * At the last two the exporter inside the process, if there is one, is told to end too (inproc.c).
 *
 * The dump itself is taken by the clock thread; the leaving thread waits, for a bounded time, GIL held or not: the clock
 * thread never wants the GIL.
 */
#include "exit.h"

#include "clock.h"
#include "config.h"
#include "descriptors.h"
#include "dump.h"
#include "identity.h"
#include "inproc.h"
#include "pyframes.h"
#include "pyobjects.h"
#include "selfcheck.h"
#include "slots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WAIT_MS 10000u
/* For _exit, which a signal handler may call while its thread is inside malloc: then the dump waits for a lock of ours. */
#define WAIT_ALLOCATOR_MS 2000u

static _Atomic bool active; /* an exit dump is due */
static _Atomic bool armed;  /* the callback is registered, or can't be */
static _Atomic bool asked;  /* the pending call is left */
static int asked_in;        /* by this process */

/* A child between fork and exec, a program that did nothing, are not. Between fork and _exit too an interpreter makes some small
 * objects. */
#define FEW_OBJECTS 8u

static bool worth_a_file(void)
{
	uint64_t objects = hw_slots_samples();
	return objects >= FEW_OBJECTS || HW_GET(samples) > objects;
}

/* False if the dump was waited for in vain. */
static bool leave(unsigned allocator_ms)
{
	int keep = errno, err = 0;
	if (hw_identity.pid != (int)getpid())
		return true;
	if (atomic_load(&active) && worth_a_file() && atomic_exchange(&active, false))
		err = hw_clock_request(true, WAIT_MS, allocator_ms);
	hw_descriptors_flush();
	errno = keep;
	return err != ETIMEDOUT;
}

void hw_exit_last_thread(void)
{
	if (atomic_exchange(&active, false) && worth_a_file())
		hw_dump("exit", "");
}

__attribute__((destructor)) static void at_unload(void)
{
	if (leave(WAIT_MS))
		hw_inproc_end();
}

HW_EXPORT __attribute__((noreturn)) void _exit(int status)
{
	if (leave(WAIT_ALLOCATOR_MS))
		hw_inproc_end();
	for (;;)
		syscall(SYS_exit_group, status);
}

HW_EXPORT __attribute__((noreturn)) void _Exit(int status)
{
	_exit(status);
}

/* ---------------------------------------------------------------- the interpreter's atexit */

/* Of CPython's stable ABI (3.8 - 3.15): PyMethodDef, METH_NOARGS. */
struct method_def {
	const char *name;
	void *(*fn)(void *self, void *args);
	int flags;
	const char *doc;
};
#define METH_NOARGS 4

static struct {
	int (*is_initialized)(void), (*is_finalizing)(void);
	int (*add_pending_call)(int (*)(void *), void *);
	void *(*str)(const char *);
	void *(*loaded)(void *);
	void *(*import)(const char *, void *, void *, void *, int);
	void *(*getattr)(void *, const char *);
	void *(*new_function)(struct method_def *, void *, void *);
	void *(*call)(void *, ...);
	void (*incref)(void *), (*decref)(void *);
	void (*clear_error)(void);
	void *none;
} py;

static void *on_exit_callback(void *self, void *args)
{
	(void)self;
	(void)args;
	leave(WAIT_MS);
	py.incref(py.none);
	return py.none;
}

/* In the main thread, with the GIL. */
static int register_callback(void *arg)
{
	(void)arg;
	static struct method_def def = {"heapwire_exit", on_exit_callback, METH_NOARGS, NULL};
	if (atomic_load(&armed))
		return 0;
	hw_selfcheck();
	hw_objects_check();
	if (!hw_config.exit_dump) {
		atomic_store(&armed, true);
		return 0;
	}
	/* Neither __import__, which the program may have replaced, nor, if it can be helped, importlib. */
	void *name = py.str("atexit");
	void *module = name ? py.loaded(name) : NULL;
	if (name && !module && hw_py_inside_importlib()) {
		py.decref(name);
		atomic_store(&asked, false); /* the clock asks again */
		return 0;
	}
	if (!module)
		module = py.import("atexit", NULL, NULL, NULL, 0);
	void *reg = module ? py.getattr(module, "register") : NULL;
	void *fn = reg ? py.new_function(&def, NULL, NULL) : NULL;
	void *result = fn ? py.call(reg, fn, NULL) : NULL;
	void *const refs[] = {result, fn, reg, module, name};
	for (size_t i = 0; i < sizeof refs / sizeof *refs; i++)
		if (refs[i])
			py.decref(refs[i]);
	if (!result)
		py.clear_error(); /* the destructor remains */
	atomic_store(&armed, true);
	return 0;
}

bool hw_exit_armed(void)
{
	return atomic_load(&armed);
}

void hw_exit_arm(void)
{
	/* A call that was pending at a fork is not relied on in the child. */
	if ((asked && asked_in == hw_identity.pid) || !py.is_initialized() || py.is_finalizing())
		return;
	asked_in = hw_identity.pid;
	atomic_store(&asked, true); /* before the call: it may come at once, and find that it has to wait */
	if (py.add_pending_call(register_callback, NULL))
		atomic_store(&asked, false);
}

void hw_exit_init(void)
{
	atomic_store(&active, hw_config.exit_dump);
	/* Without frames it can't be told when an import would do harm. */
	if (hw_py_minor() < 8 || !hw_selfcheck_init() || (strcmp(hw_py_frames_state(), "on") && !hw_py_on_trial())) {
		atomic_store(&armed, true);
		return;
	}
	const struct {
		void *to;
		const char *name;
	} symbols[] = {
		{&py.is_initialized, "Py_IsInitialized"}, {&py.add_pending_call, "Py_AddPendingCall"},
		{&py.str, "PyUnicode_FromString"},	  {&py.loaded, "PyImport_GetModule"},
		{&py.import, "PyImport_ImportModuleLevel"}, {&py.getattr, "PyObject_GetAttrString"},
		{&py.new_function, "PyCFunction_NewEx"},  {&py.call, "PyObject_CallFunctionObjArgs"},
		{&py.incref, "Py_IncRef"},		  {&py.decref, "Py_DecRef"},
		{&py.clear_error, "PyErr_Clear"},	  {&py.none, "_Py_NoneStruct"},
	};
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *s = hw_py_symbol(symbols[i].name);
		if (!s) {
			atomic_store(&armed, true);
			return;
		}
		*(void **)symbols[i].to = s;
	}
	*(void **)&py.is_finalizing = hw_py_is_finalizing_symbol();
	if (!py.is_finalizing)
		atomic_store(&armed, true);
}

static int run_soon(void *fn)
{
	((void (*)(void))fn)();
	return 0;
}

bool hw_exit_call_soon(void (*fn)(void))
{
	return py.add_pending_call && py.is_initialized() && py.add_pending_call(run_soon, (void *)fn) == 0;
}

void hw_exit_forked(void)
{
	atomic_store(&active, hw_config.exit_dump);
}
