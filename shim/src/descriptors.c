/* descriptors.c: a table of descriptors for the shim's own threads.
 *
 * Descriptors are the process's, and programs close numbers that are not theirs any more: twice, or a whole range. In a table that
 * is shared, a dump would be lost by that, or, the other way round, the shim's close would take a file of the program's that came to
 * the number meanwhile. And there may be none left to open a dump with, when a leak of descriptors is what the job dies of. So the
 * clock thread has a table of its own, and with it all threads that it starts (inproc.c).
 *
 * The table starts empty, so that no pipe and no socket of the program's stays open because of it, with numbers 0 to 2 taken, so that
 * what somebody writes to standard error is never written into a dump.
 *
 * What is said to people has to get out of there: the process's standard error is opened once more, through /proc, or taken over with
 * pidfd_getfd, or left for a thread of the program's.
 *
 * Linux 5.9 has close_range, which copies the first 64 numbers at most (fs/file.c, dup_fd) and closes them. Before, the whole table is
 * copied and emptied. For that moment the program's files have one more owner, and a file system that does something at each close
 * (NFS, FUSE) does it once more.
 */
#include "descriptors.h"

#include "out.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* include/uapi/linux/close_range.h, Linux 5.9, and the numbers of system calls: older headers have none. */
#define RANGE_UNSHARE (1u << 1)
#define NR_CLOSE_RANGE 436
#define NR_PIDFD_OPEN 434  /* 5.3 */
#define NR_PIDFD_GETFD 438 /* 5.6 */

static __thread bool left;

bool hw_descriptors_left(void)
{
	return left;
}

void hw_descriptors_say_left(bool is)
{
	left = is;
}

/* ---------------------------------------------------------------- filters of system calls */

static bool filtered(void)
{
	char text[4096];
	const char *p = hw_read_file("/proc/thread-self/status", text, sizeof text) > 0 ? strstr(text, "\nSeccomp:") : NULL;
	return !p || strtoul(p + strlen("\nSeccomp:"), NULL, 10) != 0;
}

/* A filter may end the process at a call that it does not know. Where there is one the call is made by a child first, one that nobody
 * waits for by accident (no signal at its end), shares nothing and does nothing else. What it found holds for children of ours too. */
static bool bearable(_Atomic int *known, long call, unsigned a, unsigned b, unsigned c)
{
	enum { UNKNOWN, GOOD, BAD };
	if (atomic_load(known) == UNKNOWN && filtered()) {
		int status = -1;
		long child = syscall(SYS_clone, 0ul, 0ul, 0ul, 0ul, 0ul);
		if (child == 0)
			for (;;)
				syscall(SYS_exit_group, syscall(call, a, b, c) ? 1 : 0);
		while (child > 0 && waitpid((pid_t)child, &status, __WCLONE) < 0 && errno == EINTR)
			;
		atomic_store(known, child > 0 && status == 0 ? GOOD : BAD);
	}
	return atomic_load(known) != BAD;
}

/* ---------------------------------------------------------------- the table */

static bool new_table(void)
{
	static _Atomic int known;
	return bearable(&known, NR_CLOSE_RANGE, ~0u, ~0u, 0) && syscall(NR_CLOSE_RANGE, 0u, ~0u, RANGE_UNSHARE) == 0;
}

#define MOST_WITHOUT_PROC 65536

static bool copy_and_empty(void)
{
	static _Atomic int known;
	if (!bearable(&known, SYS_unshare, CLONE_FILES, 0, 0) || unshare(CLONE_FILES))
		return false;
	close(STDIN_FILENO); /* for the list, should the table be full */
	DIR *list = opendir("/proc/thread-self/fd");
	if (!list) {
		long end = sysconf(_SC_OPEN_MAX);
		for (int fd = 0; fd < end && fd < MOST_WITHOUT_PROC; fd++)
			close(fd);
		return true;
	}
	for (struct dirent *e; (e = readdir(list));) {
		int fd = atoi(e->d_name);
		if (*e->d_name != '.' && fd != dirfd(list))
			close(fd);
	}
	closedir(list);
	return true;
}

/* Something that takes no byte, on the lowest free number. */
static int nowhere(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	return fd >= 0 ? fd : epoll_create1(EPOLL_CLOEXEC);
}

bool hw_descriptors_leave(void)
{
	if (left)
		return true;
	if (!new_table() && !copy_and_empty())
		return false;
	left = true;
	for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
		if (nowhere() > STDERR_FILENO)
			break;
	return true;
}

/* ---------------------------------------------------------------- what is said */

static char kept[1024];
static _Atomic int keeping; /* 0 free, 1 being written or read, 2 there */

/* Does all that is written through the process's standard error, a file, go to the file's end? Else another opening of it has another
 * place in it, and one would write over the other. */
static bool appends(void)
{
	char text[256];
	const char *flags = hw_read_file("/proc/self/fdinfo/2", text, sizeof text) > 0 ? strstr(text, "flags:") : NULL;
	return flags && strtoul(flags + strlen("flags:"), NULL, 8) & O_APPEND;
}

static int open_again(void)
{
	static const char path[] = "/proc/self/fd/2"; /* of the first thread */
	struct stat st;
	if (stat(path, &st) || !(S_ISFIFO(st.st_mode) || S_ISCHR(st.st_mode) || (S_ISREG(st.st_mode) && appends())))
		return -1;
	int fd = open(path, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	if (fd >= 0 && fcntl(fd, F_SETFL, O_APPEND)) { /* without a reader a pipe would have had open wait; now write may */
		close(fd);
		fd = -1;
	}
	return fd;
}

/* For a socket, a file that is not appended to, or one that this user could not open. Not worth a child. */
static int take_over(void)
{
	if (filtered())
		return -1;
	int process = (int)syscall(NR_PIDFD_OPEN, getpid(), 0);
	if (process < 0)
		return -1;
	int fd = (int)syscall(NR_PIDFD_GETFD, process, STDERR_FILENO, 0);
	close(process);
	return fd;
}

/* Without a SIGPIPE that the program did not ask for. */
static bool put(int fd, const char *line, size_t n)
{
	sigset_t pipe, before, pending;
	sigemptyset(&pipe);
	sigaddset(&pipe, SIGPIPE);
	pthread_sigmask(SIG_BLOCK, &pipe, &before);
	bool theirs = sigpending(&pending) == 0 && sigismember(&pending, SIGPIPE);
	ssize_t w;
	do
		w = write(fd, line, n);
	while (w < 0 && errno == EINTR);
	if (w < 0 && errno == EPIPE && !theirs)
		sigtimedwait(&pipe, NULL, &(struct timespec){0});
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return w >= 0;
}

static void keep(const char *line, size_t n)
{
	int nobody = 0;
	if (n >= sizeof kept || !atomic_compare_exchange_strong(&keeping, &nobody, 1))
		return;
	memcpy(kept, line, n);
	kept[n] = 0;
	atomic_store(&keeping, 2);
}

void hw_descriptors_write(const char *line, size_t n)
{
	int was = errno;
	if (!left)
		put(STDERR_FILENO, line, n);
	else {
		int fd = open_again();
		if (fd < 0)
			fd = take_over();
		if (fd < 0 || !put(fd, line, n))
			keep(line, n);
		if (fd >= 0)
			close(fd);
	}
	errno = was;
}

void hw_descriptors_flush(void)
{
	int there = 2;
	if (left || !atomic_compare_exchange_strong(&keeping, &there, 1))
		return;
	hw_descriptors_write(kept, strlen(kept));
	atomic_store(&keeping, 0);
}

void hw_descriptors_forked(void)
{
	atomic_store(&keeping, 0);
}
