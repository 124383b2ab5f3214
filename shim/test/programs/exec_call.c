/* exec_call <function> <file> [argument…]: starts the file by that function of the exec family, with the environment as it
 * is. "vfork" in front of the function: in a child of vfork, whose status is passed on. What fails is said by errno's name.
 * "pad:<n>" in front of it all adds that many variables. "chdir:<folder>" has posix_spawn's file actions change the folder.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static posix_spawn_file_actions_t actions, *folder;

static int status_of(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		;
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

static int failed(const char *what)
{
	printf("%s: %s\n", what, strerrorname_np(errno));
	fflush(stdout);
	return 99;
}

static int spawned(const char *what, int err, pid_t pid)
{
	errno = err;
	return err ? failed(what) : status_of(pid);
}

static int start(const char *how, const char *file, char **argv)
{
	pid_t pid = 0;
	const char *a = argv[1], *b = a ? argv[2] : NULL;
	if (!strcmp(how, "execve"))
		execve(file, argv, environ);
	else if (!strcmp(how, "execv"))
		execv(file, argv);
	else if (!strcmp(how, "execvp"))
		execvp(file, argv);
	else if (!strcmp(how, "execvpe"))
		execvpe(file, argv, environ);
	else if (!strcmp(how, "execl"))
		execl(file, argv[0], a, b, NULL);
	else if (!strcmp(how, "execlp"))
		execlp(file, argv[0], a, b, NULL);
	else if (!strcmp(how, "execle"))
		a ? b ? execle(file, argv[0], a, b, NULL, environ) : execle(file, argv[0], a, NULL, environ)
		  : execle(file, argv[0], NULL, environ);
	else if (!strcmp(how, "fexecve"))
		fexecve(open(file, O_RDONLY | O_CLOEXEC), argv, environ);
	else if (!strcmp(how, "fexecve-path"))
		fexecve(open(file, O_PATH | O_CLOEXEC), argv, environ);
	else if (!strcmp(how, "execveat"))
		execveat(AT_FDCWD, file, argv, environ, 0);
	else if (!strcmp(how, "execveat-empty"))
		execveat(open(file, O_PATH | O_CLOEXEC), "", argv, environ, AT_EMPTY_PATH);
	else if (!strcmp(how, "posix_spawn"))
		return spawned(how, posix_spawn(&pid, file, folder, NULL, argv, environ), pid);
	else if (!strcmp(how, "posix_spawnp"))
		return spawned(how, posix_spawnp(&pid, file, folder, NULL, argv, environ), pid);
	else
		return 98;
	return failed(how);
}

int main(int argc, char **argv)
{
	argv++;
	argc--;
	if (argc && !strncmp(*argv, "pad:", 4)) {
		for (int i = 0, n = atoi(*argv + 4); i < n; i++) {
			char name[32];
			snprintf(name, sizeof name, "PAD_%d", i);
			setenv(name, "x", 1);
		}
		argv++;
		argc--;
	}
	if (argc && !strncmp(*argv, "chdir:", 6)) {
		posix_spawn_file_actions_init(&actions);
		posix_spawn_file_actions_addchdir_np(&actions, *argv + 6);
		folder = &actions;
		argv++;
		argc--;
	}
	int shared = argc && !strcmp(*argv, "vfork");
	if (argc < 2 + shared)
		return 97;
	if (!shared)
		return start(argv[0], argv[1], argv + 1);
	volatile int here = 1;
	pid_t pid = vfork();
	if (pid == 0)
		_exit(start(argv[1], argv[2], argv + 2));
	return here == 1 ? status_of(pid) : 96;
}
