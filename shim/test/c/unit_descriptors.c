/* A thread that leaves the process's table of descriptors, and what it says from there; with each way that the kernel has, and without
 * any. */
#include "../../src/descriptors.c"

#include "check.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#define MOST 4096

/* From here on, in this process, these system calls end so; 0 ends the list. */
static void refuse(const int *calls, unsigned end)
{
	struct sock_filter f[16];
	unsigned short n = 0;
	f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (; *calls; calls++) {
		f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)*calls, 0, 1);
		f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, end);
	}
	f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = {n, f};
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

static int open_ones(void)
{
	int n = 0;
	for (int fd = 0; fd < MOST; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

static void *in_a_thread(void *(*fn)(void *), void *arg)
{
	pthread_t t;
	void *result;
	if (pthread_create(&t, NULL, fn, arg) || pthread_join(t, &result))
		abort();
	return result;
}

/* ---------------------------------------------------------------- the table */

static int ends[2];
static pthread_barrier_t barrier;

static void *leaves(void *arg)
{
	int *seen = arg;
	seen[0] = hw_descriptors_leave() && hw_descriptors_left() && hw_descriptors_leave();
	seen[1] = open_ones();
	seen[2] = write(STDERR_FILENO, "", 0) == 0;
	seen[3] = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	pthread_barrier_wait(&barrier); /* the process closes everything that it has */
	pthread_barrier_wait(&barrier);
	char c;
	seen[4] = read(seen[3], &c, 1) == 1;
	close(seen[3]);
	return NULL;
}

static void *is_left(void *arg)
{
	(void)arg;
	return (void *)(uintptr_t)hw_descriptors_left();
}

static void *says_left(void *arg)
{
	hw_descriptors_say_left(true);
	return is_left(arg);
}

/* Whichever way it is done. In a process of its own, whose descriptors are all closed on the way. */
static void table(const char *way)
{
	int seen[5], before = open_ones();
	if (pipe(ends))
		abort();
	pthread_barrier_init(&barrier, NULL, 2);
	pthread_t t;
	if (pthread_create(&t, NULL, leaves, seen))
		abort();
	pthread_barrier_wait(&barrier);
	CHECK(open_ones() == before + 2, "%s: the process has what it had: %d, then %d", way, before, open_ones());
	CHECK(!hw_descriptors_left(), "%s: the process's threads are where they were", way);
	/* Nobody else has the writing end. */
	char c;
	close(ends[1]);
	fcntl(ends[0], F_SETFL, O_NONBLOCK);
	ssize_t n = read(ends[0], &c, 1);
	CHECK(n == 0, "%s: a pipe has its end when the process closes it: %zd", way, n);
	int out = dup(STDOUT_FILENO);
	for (int fd = 0; fd < MOST; fd++)
		if (fd != out)
			close(fd);
	bool again = true;
	for (int i = 0; i < 3; i++)
		again = again && dup(out) == i;
	pthread_barrier_wait(&barrier);
	pthread_join(t, NULL);
	CHECK(again, "%s: the numbers are free", way);
	CHECK(fcntl(seen[3], F_GETFD) < 0 || seen[3] == out, "%s: nothing of the thread's is in the process", way);
	CHECK(seen[0], "%s: the thread has left", way);
	CHECK(seen[1] == 3 && seen[2], "%s: it starts with three that lead nowhere: %d", way, seen[1]);
	CHECK(seen[3] == 3 && seen[4], "%s: what it opens stays open while the process closes everything", way);
	CHECK(!in_a_thread(is_left, NULL) && in_a_thread(says_left, NULL), "%s: a thread is where it is told", way);
}

static void *cannot(void *arg)
{
	int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
	*(int *)arg = !hw_descriptors_leave() && !hw_descriptors_left() && fcntl(fd, F_GETFD) >= 0;
	close(fd);
	return NULL;
}

/* ---------------------------------------------------------------- what is said */

static void *says(void *line)
{
	if (hw_descriptors_leave())
		hw_descriptors_write(line, strlen(line));
	return NULL;
}

static void *says_errno(void *line)
{
	errno = 77;
	hw_descriptors_write(line, strlen(line));
	return (void *)(uintptr_t)(errno == 77);
}

/* What arrives at the other end of a standard error that is `in`. */
static const char *arrives(int in, int out, const char *line)
{
	static char text[4096];
	if (dup2(in, STDERR_FILENO) < 0)
		abort();
	in_a_thread(says, (void *)line);
	fcntl(out, F_SETFL, fcntl(out, F_GETFL) | O_NONBLOCK);
	ssize_t n = read(out, text, sizeof text - 1);
	text[n < 0 ? 0 : n] = 0;
	return text;
}

static void words(bool take_overs)
{
	const char *line = "a line\n", *none = take_overs ? line : "";
	int p[2], s[2];
	if (pipe(p) || socketpair(AF_UNIX, SOCK_STREAM, 0, s))
		abort();
	CHECK(!strcmp(arrives(p[1], p[0], line), line), "a pipe");
	CHECK(!strcmp(arrives(s[1], s[0], line), none), "a socket, take over: %d", take_overs);
	const char *kept_line = take_overs ? "" : line;
	CHECK(in_a_thread(says_errno, "in a thread of the program's\n") != NULL, "errno is kept");
	hw_descriptors_flush();
	hw_descriptors_flush();
	char text[256] = "";
	fcntl(s[0], F_SETFL, O_NONBLOCK);
	ssize_t n = read(s[0], text, sizeof text - 1);
	text[n < 0 ? 0 : n] = 0;
	char want[256];
	snprintf(want, sizeof want, "in a thread of the program's\n%s", kept_line);
	CHECK(!strcmp(text, want), "what could not be said is said later, once: %s", text);

	/* Files: what the program writes, and what is said, are both there. */
	for (int append = 0; append < 2; append++) {
		char name[] = "/tmp/unit-descriptors-XXXXXX";
		close(mkstemp(name));
		int fd = open(name, O_WRONLY | (append ? O_APPEND : 0)), out = open(name, O_RDONLY);
		if (fd < 0 || out < 0 || write(fd, "before ", 7) != 7)
			abort();
		lseek(out, 7, SEEK_SET);
		const char *got = arrives(fd, out, line);
		CHECK(!strcmp(got, append || take_overs ? line : ""), "a file, append %d, take over %d: %s", append, take_overs, got);
		if (write(STDERR_FILENO, "after", 5) != 5)
			abort();
		hw_descriptors_flush();
		lseek(out, 0, SEEK_SET);
		n = read(out, text, sizeof text - 1);
		text[n < 0 ? 0 : n] = 0;
		CHECK(!strcmp(text, append || take_overs ? "before a line\nafter" : "before aftera line\n"), "append %d, take over %d: %s", append, take_overs, text);
		unlink(name);
		close(fd);
		close(out);
	}

	/* Nobody reads any more: no signal. */
	close(p[0]);
	dup2(p[1], STDERR_FILENO);
	hw_descriptors_write("nobody", 6);
	in_a_thread(says, "nobody");
	hw_descriptors_forked();
	hw_descriptors_flush();
	CHECK(true, "a pipe without a reader");

	close(STDERR_FILENO);
	in_a_thread(says, "nobody");
	CHECK(true, "no standard error");
}

/* ---------------------------------------------------------------- all of it */

static int in_a_process(void (*fn)(void))
{
	fflush(stdout);
	pid_t p = fork();
	if (p == 0) {
		passed = failures = 0;
		fn();
		fflush(stdout);
		_exit(failures != 0);
	}
	int status;
	return waitpid(p, &status, 0) == p ? status : -1;
}

static void as_it_is(void)
{
	table("close_range");
}

static void without_close_range(void)
{
	refuse((int[]){NR_CLOSE_RANGE, 0}, SECCOMP_RET_ERRNO | ENOSYS);
	table("unshare");
}

/* A filter that ends the process at a call that it does not know. */
static void without_close_range_or_life(void)
{
	refuse((int[]){NR_CLOSE_RANGE, 0}, SECCOMP_RET_KILL_PROCESS);
	table("unshare, close_range kills");
}

static void other_filters(void)
{
	refuse((int[]){NR_PIDFD_GETFD, 0}, SECCOMP_RET_KILL_PROCESS);
	table("close_range, another call kills");
}

static void stays(unsigned end)
{
	refuse((int[]){NR_CLOSE_RANGE, SYS_unshare, 0}, end);
	int good = 0, before = open_ones();
	in_a_thread(cannot, &good);
	CHECK(good && open_ones() == before, "where nothing is allowed the thread stays: %x", end);
	CHECK(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "no child is left: %x", end);
}

static void refused(void)
{
	stays(SECCOMP_RET_ERRNO | EPERM);
}

static void killed(void)
{
	stays(SECCOMP_RET_KILL_PROCESS);
}

static void trapped(void)
{
	stays(SECCOMP_RET_TRAP);
}

static void unhindered(void)
{
	words(true);
}

static void filtered_words(void)
{
	refuse((int[]){NR_PIDFD_GETFD, 0}, SECCOMP_RET_KILL_PROCESS);
	words(false);
}

int main(void)
{
	CHECK(in_a_process(as_it_is) == 0, "a table of its own");
	CHECK(in_a_process(without_close_range) == 0, "a table of its own, before Linux 5.9");
	CHECK(in_a_process(without_close_range_or_life) == 0, "a table of its own, under a filter that kills");
	CHECK(in_a_process(other_filters) == 0, "a table of its own, under a filter that does not mind");
	CHECK(in_a_process(refused) == 0, "no table of its own");
	CHECK(in_a_process(killed) == 0, "no table of its own, and life goes on");
	CHECK(in_a_process(trapped) == 0, "no table of its own, and no signal");
	CHECK(in_a_process(unhindered) == 0, "what is said");
	CHECK(in_a_process(filtered_words) == 0, "what is said under a filter of system calls");
	return checked("descriptors");
}
