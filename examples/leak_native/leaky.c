// A C extension that leaks: once with Python's lock released, once with it held, once on a thread Python does not know.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct block {
	struct block *next;
};

static struct block *kept;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

static int keep(struct block *b, size_t bytes, char mark)
{
	if (b == NULL)
		return -1;
	memset(b, mark, bytes);
	pthread_mutex_lock(&kept_lock);
	b->next = kept;
	kept = b;
	pthread_mutex_unlock(&kept_lock);
	return 0;
}

// The marks differ because gcc folds functions with equal bodies into one (-fipa-icf), and the profile would name that one.
__attribute__((noinline)) static int leak_without_lock(size_t bytes)
{
	return keep(malloc(bytes), bytes, 'r');
}

__attribute__((noinline)) static int leak_with_lock(size_t bytes)
{
	return keep(malloc(bytes), bytes, 'h');
}

__attribute__((noinline)) static int leak_on_own_thread(size_t bytes)
{
	return keep(malloc(bytes), bytes, 't');
}

struct request {
	size_t bytes;
	long count;
	int failed;
};

static int parse(PyObject *args, struct request *r)
{
	Py_ssize_t bytes;

	if (!PyArg_ParseTuple(args, "nl", &bytes, &r->count))
		return -1;
	if (bytes < (Py_ssize_t)sizeof(struct block)) {
		PyErr_SetString(PyExc_ValueError, "a block holds at least one pointer");
		return -1;
	}
	r->bytes = (size_t)bytes;
	r->failed = 0;
	return 0;
}

static PyObject *finish(const struct request *r)
{
	if (r->failed)
		return PyErr_NoMemory();
	Py_RETURN_NONE;
}

static PyObject *released(PyObject *self, PyObject *args)
{
	struct request r;

	(void)self;
	if (parse(args, &r) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	for (long i = 0; i < r.count; i++)
		r.failed |= leak_without_lock(r.bytes);
	Py_END_ALLOW_THREADS
	return finish(&r);
}

static PyObject *held(PyObject *self, PyObject *args)
{
	struct request r;

	(void)self;
	if (parse(args, &r) < 0)
		return NULL;
	for (long i = 0; i < r.count; i++)
		r.failed |= leak_with_lock(r.bytes);
	return finish(&r);
}

static void *own_thread(void *argument)
{
	struct request *r = argument;

	for (long i = 0; i < r->count; i++)
		r->failed |= leak_on_own_thread(r->bytes);
	return NULL;
}

static PyObject *threaded(PyObject *self, PyObject *args)
{
	struct request r;
	pthread_t thread;
	int error;

	(void)self;
	if (parse(args, &r) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS
	error = pthread_create(&thread, NULL, own_thread, &r);
	if (error == 0)
		error = pthread_join(thread, NULL);
	Py_END_ALLOW_THREADS
	if (error != 0) {
		errno = error;
		return PyErr_SetFromErrno(PyExc_OSError);
	}
	return finish(&r);
}

static PyMethodDef methods[] = {
	{"released", released, METH_VARARGS, "released(bytes, count): leaks count blocks without holding Python's lock"},
	{"held", held, METH_VARARGS, "held(bytes, count): leaks count blocks while holding Python's lock"},
	{"threaded", threaded, METH_VARARGS, "threaded(bytes, count): leaks count blocks on a thread without Python state"},
	{NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
	PyModuleDef_HEAD_INIT, "leaky", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_leaky(void)
{
	return PyModule_Create(&module);
}
