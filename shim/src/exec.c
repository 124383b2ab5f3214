/* exec.c: a program that could not start with the library is started without it.
 *
 * LD_PRELOAD is inherited, and three kinds of programs do not bear it: those of musl (exit status 127, unresolved symbols),
 * those with a shared runtime of AddressSanitizer (it aborts when it is not first) or ThreadSanitizer (it crashes before
 * main, under any other malloc), and those of another architecture (their loader prints an error line). With the runtimes
 * linked in statically, as clang does unasked, programs run. So the exec family and posix_spawn are defined here in front
 * of libc's: the file that will run is found as libc finds it, its ELF header, interpreter and DT_NEEDED are read, and if it
 * is one of the three, our entry is left out of the LD_PRELOAD that is passed on. Everything else, the search included, is
 * done by the next definition of the function, with the same arguments: what is judged here decides about one string and
 * nothing more. On any doubt (a file that can't be read, a form that is not known) the environment goes through as it is.
 *
 * The caller may be a child of vfork, which shares its parent's memory, or a signal handler: no malloc, no lock, no stdio,
 * nothing written but the own stack. Files are read with raw system calls, which are no cancellation points. The stack holds
 * 6 KiB while a file is judged, afterwards, and only for a program that refuses us, the new environment: up to 8 KiB (1000
 * variables), beyond that in a mapping of its own. A vfork child that succeeds leaves such a mapping to its parent.
 *
 * The functions behind are looked up by the constructor. Only when another library's constructor has called exec before
 * ours ran is dlsym called here; nothing is judged yet then.
 *
 * libc's own calls do not come by (system, popen and wordexp start /bin/sh, which does), nor do programs that make the
 * system call themselves (Go, static ones), nor /etc/ld.so.preload. A program linked before glibc 2.15 that relies on
 * posix_spawn to run a script without #! (posix_spawn@GLIBC_2.2.5) gets the newer function, which refuses such a script.
 */
#include "exec.h"

#include "config.h"

#include <alloca.h>
#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define STACK_ROOM 8192u
#define LEVELS 5	   /* of scripts that name scripts: as many as Linux follows (fs/exec.c, exec_binprm) */
#define SCRIPT_LINE 256	   /* Linux, BINPRM_BUF_SIZE */
#define HEADERS_MAX 256u   /* program headers that are looked at */
#define DYNAMIC_MAX 4096u  /* entries of the dynamic section */

static bool active;
static char own_name[NAME_MAX + 1]; /* the last part of the path that the library was loaded by */

static struct {
	int (*execve)(const char *, char *const *, char *const *);
	int (*execvpe)(const char *, char *const *, char *const *);
	int (*fexecve)(int, char *const *, char *const *);
	int (*execveat)(int, const char *, char *const *, char *const *, int);
	int (*spawn)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,
		     char *const *);
	int (*spawnp)(pid_t *, const char *, const posix_spawn_file_actions_t *, const posix_spawnattr_t *, char *const *,
		      char *const *);
} next;

static const char *last_part(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash ? slash + 1 : path;
}

/* ---------------------------------------------------------------- the environment */

static const char *preload(const char *variable)
{
	return strncmp(variable, "LD_PRELOAD=", 11) ? NULL : variable + 11;
}

/* The next entry of an LD_PRELOAD list, which is separated by colons and spaces (ld.so(8)); its length, 0 at the end. */
static size_t entry(const char **p)
{
	*p += strspn(*p, " :");
	return strcspn(*p, " :");
}

static bool ours(const char *p, size_t n)
{
	size_t k = strlen(own_name);
	return n >= k && !memcmp(p + n - k, own_name, k) && (n == k || p[n - k - 1] == '/');
}

static bool names_us(const char *list)
{
	for (size_t n; (n = entry(&list)); list += n)
		if (ours(list, n))
			return true;
	return false;
}

/* Bytes that the environment takes without us; 0 if we are not in it. */
static size_t room_needed(char *const *envp)
{
	size_t n = 0, text = 0;
	if (!envp)
		return 0;
	for (; envp[n]; n++) {
		const char *list = preload(envp[n]);
		if (list && names_us(list))
			text += strlen(envp[n]) + 1;
	}
	return text ? (n + 1) * sizeof *envp + text : 0;
}

/* Writes it into that much room. The other entries keep their order and the separator before them; a list that would be
 * empty is left out. */
static char *const *without_us(void *room, char *const *envp)
{
	size_t count = 0, n = 0;
	while (envp[count])
		count++;
	char **v = room, *text = (char *)(v + count + 1);
	for (; *envp; envp++) {
		const char *p = preload(*envp);
		if (!p || !names_us(p)) {
			v[n++] = *envp;
			continue;
		}
		char *start = text, *first = text + (p - *envp);
		memcpy(text, *envp, (size_t)(p - *envp));
		text = first;
		for (size_t k; (k = entry(&p)); p += k) {
			if (ours(p, k))
				continue;
			if (text != first)
				*text++ = p[-1];
			memcpy(text, p, k);
			text += k;
		}
		if (text != first)
			v[n++] = start;
		*text++ = 0;
	}
	v[n] = NULL;
	return v;
}

/* ---------------------------------------------------------------- the file */

/* A window of a file: most programs have all that is asked for within a few of them. */
struct file {
	int fd;
	uint64_t at;
	size_t n;
	unsigned char bytes[1024];
};

/* Up to `want` bytes at an offset: how many there are. */
static size_t look(struct file *f, uint64_t at, size_t want, const unsigned char **p)
{
	*p = f->bytes;
	if (at > INT64_MAX - sizeof f->bytes)
		return 0;
	if (at < f->at || at + want > f->at + f->n) {
		long r = syscall(SYS_pread64, f->fd, f->bytes, sizeof f->bytes, at);
		f->at = at;
		f->n = r > 0 ? (size_t)r : 0;
	}
	*p += at - f->at;
	size_t left = f->n - (size_t)(at - f->at);
	return left < want ? left : want;
}

static bool copy(struct file *f, uint64_t at, void *to, size_t n)
{
	const unsigned char *p;
	if (look(f, at, n, &p) != n)
		return false;
	memcpy(to, p, n);
	return true;
}

static bool begins(struct file *f, uint64_t at, const char *with)
{
	const unsigned char *p;
	size_t n = strlen(with);
	return look(f, at, n, &p) == n && !memcmp(p, with, n);
}

static bool header(struct file *f, const Elf64_Ehdr *e, unsigned i, Elf64_Phdr *p)
{
	return i < e->e_phnum && i < HEADERS_MAX && e->e_phoff < INT64_MAX / 2 && copy(f, e->e_phoff + i * sizeof *p, p, sizeof *p);
}

static bool entry_of(struct file *f, const Elf64_Phdr *dynamic, unsigned i, Elf64_Dyn *d)
{
	return i < DYNAMIC_MAX && i < dynamic->p_filesz / sizeof *d && copy(f, dynamic->p_offset + i * sizeof *d, d, sizeof *d) &&
	       d->d_tag != DT_NULL;
}

/* Does the dynamic section ask for a sanitizer's shared runtime, gcc's or clang's? */
static bool needs_sanitizer(struct file *f, const Elf64_Ehdr *e, const Elf64_Phdr *dynamic)
{
	Elf64_Dyn d;
	uint64_t strings = 0;
	bool found = false;
	for (unsigned i = 0; entry_of(f, dynamic, i, &d); i++) {
		if (d.d_tag == DT_STRTAB) {
			strings = d.d_un.d_ptr;
			found = true;
		}
	}
	Elf64_Phdr p;
	for (unsigned i = 0; found; i++) { /* an address so far */
		if (!header(f, e, i, &p))
			return false;
		if (p.p_type == PT_LOAD && strings >= p.p_vaddr && strings - p.p_vaddr < p.p_filesz) {
			strings = strings - p.p_vaddr + p.p_offset;
			break;
		}
	}
	for (unsigned i = 0; found && entry_of(f, dynamic, i, &d); i++) {
		static const char *const runtimes[] = {"libasan.so", "libtsan.so", "libclang_rt.asan", "libclang_rt.tsan"};
		for (size_t k = 0; d.d_tag == DT_NEEDED && k < sizeof runtimes / sizeof *runtimes; k++)
			if (begins(f, strings + d.d_un.d_val, runtimes[k]))
				return true;
	}
	return false;
}

/* Is the interpreter that a program header names musl's loader? */
static bool is_musl(struct file *f, const Elf64_Phdr *interp)
{
	char path[SCRIPT_LINE];
	size_t n = interp->p_filesz < sizeof path ? interp->p_filesz : sizeof path - 1;
	if (!copy(f, interp->p_offset, path, n))
		return false;
	path[n] = 0;
	return !strncmp(last_part(path), "ld-musl-", 8);
}

/* A static program ignores LD_PRELOAD: its environment stays whole for what it may start. musl's loader, when it is run
 * as a program, is known by its name only. */
static bool elf_refuses(struct file *f, const char *path)
{
	Elf64_Ehdr e;
	if (!copy(f, 0, &e, sizeof e))
		return false;
	if (e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_ident[EI_DATA] != ELFDATA2LSB || e.e_machine != EM_X86_64)
		return true;
	if (e.e_phentsize != sizeof(Elf64_Phdr))
		return false;
	Elf64_Phdr p, interp = {0}, dynamic = {0};
	for (unsigned i = 0; header(f, &e, i, &p); i++) {
		if (p.p_type == PT_INTERP)
			interp = p;
		if (p.p_type == PT_DYNAMIC)
			dynamic = p;
	}
	if (!interp.p_type)
		return path && !strncmp(last_part(path), "ld-musl-", 8);
	return is_musl(f, &interp) || (dynamic.p_type && needs_sanitizer(f, &e, &dynamic));
}

/* The interpreter in a script's first line, as Linux reads it (fs/binfmt_script.c): blanks around, then a path, then
 * perhaps one argument. */
static bool script_interpreter(struct file *f, char *to)
{
	const unsigned char *line;
	size_t n = look(f, 0, SCRIPT_LINE, &line), i = 2, k = 0;
	while (i < n && (line[i] == ' ' || line[i] == '\t'))
		i++;
	for (; i < n && line[i] && !strchr(" \t\n", line[i]); i++)
		to[k++] = (char)line[i];
	to[k] = 0;
	return k && i < SCRIPT_LINE;
}

/* Regular files only: to open a pipe or a device would do something. */
static int open_program(int at, const char *path)
{
	struct stat s;
	if (syscall(SYS_newfstatat, at, path, &s, 0) || !S_ISREG(s.st_mode))
		return -1;
	return (int)syscall(SYS_openat, at, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
}

/* Will what runs for this path refuse the library? `shell`: a file that is neither a program nor a script is given to
 * /bin/sh (execvp, execlp, execvpe). */
static bool refuses(int at, const char *path, bool shell)
{
	char interpreter[SCRIPT_LINE + 1];
	struct file f;
	for (int level = 0; level < LEVELS; level++) {
		f.fd = open_program(at, path);
		if (f.fd < 0)
			return false;
		f.at = f.n = 0;
		bool elf = begins(&f, 0, ELFMAG), refused = elf && elf_refuses(&f, path), next_level = false;
		if (!elf && begins(&f, 0, "#!")) {
			next_level = script_interpreter(&f, interpreter);
			shell = false;
		} else if (!elf && shell && f.n) {
			strcpy(interpreter, "/bin/sh");
			next_level = true;
			shell = false;
		}
		syscall(SYS_close, f.fd);
		if (!next_level)
			return refused;
		at = AT_FDCWD;
		path = interpreter;
	}
	return false;
}

/* The first file in PATH that exec will take, as glibc looks for it (posix/execvpe.c): PATH is the caller's own; without it
 * /bin:/usr/bin; an empty part is the working directory; what is missing or may not be run is passed over. */
static bool search(const char *file, char *to, bool elsewhere)
{
	const char *path = NULL;
	for (char **e = environ; e && *e && !path; e++)
		if (!strncmp(*e, "PATH=", 5))
			path = *e + 5;
	if (!path)
		path = "/bin:/usr/bin";
	size_t k = strlen(file);
	if (k == 0 || k > NAME_MAX)
		return false;
	for (const char *p = path;; p++) {
		size_t n = strcspn(p, ":");
		if (*p != '/' && elsewhere)
			return false;
		if (n < PATH_MAX) {
			memcpy(to, p, n);
			to[n] = '/';
			memcpy(to + n + (n > 0), file, k + 1);
			struct stat s;
			if (!syscall(SYS_newfstatat, AT_FDCWD, to, &s, 0) && S_ISREG(s.st_mode) &&
			    !syscall(SYS_faccessat, AT_FDCWD, to, X_OK))
				return true;
		}
		p += n;
		if (!*p)
			return false;
	}
}

/* ---------------------------------------------------------------- the calls */

enum kind { EXECVE, EXECVPE, FEXECVE, EXECVEAT, SPAWN, SPAWNP };

struct call {
	enum kind kind;
	int fd, flags;
	const char *path;
	char *const *argv, *const *envp;
	pid_t *pid;
	const posix_spawn_file_actions_t *actions;
	const posix_spawnattr_t *attributes;
};

__attribute__((noinline)) static bool refused_by_name(const struct call *c)
{
	char found[PATH_MAX + NAME_MAX + 2];
	/* File actions may change the folder first, and do not say so. */
	bool elsewhere = c->kind == SPAWNP && c->actions && c->actions->__used;
	if (strchr(c->path, '/'))
		return (*c->path == '/' || !elsewhere) && refuses(AT_FDCWD, c->path, c->kind == EXECVPE);
	return search(c->path, found, elsewhere) && refuses(AT_FDCWD, found, c->kind == EXECVPE);
}

/* Through /proc: the descriptor itself may be of the kind that can't be read (O_PATH). */
__attribute__((noinline)) static bool refused_by_descriptor(int fd)
{
	char path[32] = "/proc/self/fd/", digits[12];
	int n = 0, at = 14;
	if (fd < 0)
		return false;
	do {
		digits[n++] = (char)('0' + fd % 10);
	} while (fd /= 10);
	while (n)
		path[at++] = digits[--n];
	path[at] = 0;
	return refuses(AT_FDCWD, path, false);
}

static bool refused(const struct call *c)
{
	switch (c->kind) {
	case EXECVPE:
	case SPAWNP:
		return refused_by_name(c);
	case FEXECVE:
		return refused_by_descriptor(c->fd);
	case EXECVEAT:
		if ((c->flags & AT_EMPTY_PATH) && !*c->path)
			return refused_by_descriptor(c->fd);
		return refuses(c->fd, c->path, false);
	case SPAWN:
		if (*c->path != '/' && c->actions && c->actions->__used)
			return false;
		return refuses(AT_FDCWD, c->path, false);
	case EXECVE:
		return refuses(AT_FDCWD, c->path, false);
	}
	return false;
}

/* Only before the constructor has run is anything looked up here. */
static void *find(void *known, const char *name)
{
	return known ? known : dlsym(RTLD_NEXT, name);
}

#define NEXT(function, name) ((__typeof__(next.function))find((void *)next.function, name))

/* glibc before 2.34 has none. */
static int raw_execveat(int fd, const char *path, char *const *argv, char *const *envp, int flags)
{
	return (int)syscall(SYS_execveat, fd, path, argv, envp, flags);
}

static int go(const struct call *c, char *const *envp)
{
	switch (c->kind) {
	case EXECVE:
		return NEXT(execve, "execve")(c->path, c->argv, envp);
	case EXECVPE:
		return NEXT(execvpe, "execvpe")(c->path, c->argv, envp);
	case FEXECVE:
		return NEXT(fexecve, "fexecve")(c->fd, c->argv, envp);
	case EXECVEAT:
		return (next.execveat ? next.execveat : raw_execveat)(c->fd, c->path, c->argv, envp, c->flags);
	case SPAWN:
		return NEXT(spawn, "posix_spawn")(c->pid, c->path, c->actions, c->attributes, c->argv, envp);
	case SPAWNP:
		return NEXT(spawnp, "posix_spawnp")(c->pid, c->path, c->actions, c->attributes, c->argv, envp);
	}
	return -1;
}

static int call(const struct call *c)
{
	int keep = errno;
	size_t need = active ? room_needed(c->envp) : 0;
	if (need && !refused(c))
		need = 0;
	errno = keep;
	if (need == 0)
		return go(c, c->envp);
	if (need <= STACK_ROOM)
		return go(c, without_us(alloca(need), c->envp));
	long at = syscall(SYS_mmap, NULL, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	errno = keep;
	if (at == -1)
		return go(c, c->envp);
	int r = go(c, without_us((void *)at, c->envp));
	keep = errno;
	syscall(SYS_munmap, at, need);
	errno = keep;
	return r;
}

HW_EXPORT int execve(const char *path, char *const *argv, char *const *envp)
{
	return call(&(struct call){.kind = EXECVE, .path = path, .argv = argv, .envp = envp});
}

HW_EXPORT int execv(const char *path, char *const *argv)
{
	return call(&(struct call){.kind = EXECVE, .path = path, .argv = argv, .envp = environ});
}

HW_EXPORT int execvpe(const char *file, char *const *argv, char *const *envp)
{
	return call(&(struct call){.kind = EXECVPE, .path = file, .argv = argv, .envp = envp});
}

HW_EXPORT int execvp(const char *file, char *const *argv)
{
	return call(&(struct call){.kind = EXECVPE, .path = file, .argv = argv, .envp = environ});
}

HW_EXPORT int fexecve(int fd, char *const *argv, char *const *envp)
{
	return call(&(struct call){.kind = FEXECVE, .fd = fd, .argv = argv, .envp = envp});
}

HW_EXPORT int execveat(int fd, const char *path, char *const *argv, char *const *envp, int flags)
{
	return call(&(struct call){.kind = EXECVEAT, .fd = fd, .path = path, .argv = argv, .envp = envp, .flags = flags});
}

HW_EXPORT int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
			  const posix_spawnattr_t *attributes, char *const *argv, char *const *envp)
{
	return call(&(struct call){.kind = SPAWN, .path = path, .argv = argv, .envp = envp, .pid = pid, .actions = actions,
				   .attributes = attributes});
}

HW_EXPORT int posix_spawnp(pid_t *pid, const char *file, const posix_spawn_file_actions_t *actions,
			   const posix_spawnattr_t *attributes, char *const *argv, char *const *envp)
{
	return call(&(struct call){.kind = SPAWNP, .path = file, .argv = argv, .envp = envp, .pid = pid, .actions = actions,
				   .attributes = attributes});
}

/* The listed arguments become an array on the stack, as in libc: they are on the caller's already. execle has the
 * environment after the closing NULL. */
#define LISTED(kind_, path_, environment)                                                                   \
	do {                                                                                                \
		va_list ap;                                                                                 \
		size_t n = 1;                                                                               \
		va_start(ap, arg);                                                                          \
		for (const char *a = arg; a; a = va_arg(ap, const char *))                                  \
			n++;                                                                                \
		va_end(ap);                                                                                 \
		if (n > INT_MAX) {                                                                          \
			errno = E2BIG;                                                                      \
			return -1;                                                                          \
		}                                                                                           \
		const char **argv = alloca(n * sizeof *argv);                                               \
		n = 0;                                                                                      \
		va_start(ap, arg);                                                                          \
		for (const char *a = arg; a; a = va_arg(ap, const char *))                                  \
			argv[n++] = a;                                                                      \
		argv[n] = NULL;                                                                             \
		char *const *envp = environment;                                                            \
		va_end(ap);                                                                                 \
		return call(&(struct call){.kind = kind_, .path = path_, .argv = (char *const *)argv, .envp = envp}); \
	} while (0)

HW_EXPORT int execl(const char *path, const char *arg, ...)
{
	LISTED(EXECVE, path, environ);
}

HW_EXPORT int execlp(const char *file, const char *arg, ...)
{
	LISTED(EXECVPE, file, environ);
}

HW_EXPORT int execle(const char *path, const char *arg, ...)
{
	LISTED(EXECVE, path, va_arg(ap, char *const *));
}

void hw_exec_init(void)
{
	Dl_info self;
	*(void **)&next.execve = dlsym(RTLD_NEXT, "execve");
	*(void **)&next.execvpe = dlsym(RTLD_NEXT, "execvpe");
	*(void **)&next.fexecve = dlsym(RTLD_NEXT, "fexecve");
	*(void **)&next.spawn = dlsym(RTLD_NEXT, "posix_spawn");
	*(void **)&next.spawnp = dlsym(RTLD_NEXT, "posix_spawnp");
	*(void **)&next.execveat = dlsym(RTLD_NEXT, "execveat");
	if (!next.execveat)
		hw_forget_dlerror(); /* execveat is of glibc 2.34 */
	if (!hw_config.exec_guard || !dladdr((void *)own_name, &self) || !self.dli_fname)
		return;
	const char *name = last_part(self.dli_fname);
	if (!*name || strlen(name) > NAME_MAX)
		return;
	strcpy(own_name, name);
	active = true;
}
