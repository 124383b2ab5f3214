/* Which programs refuse the library, and the environment that they get; on files made here, whole, cut and damaged. */
#include "../../src/exec.c"

#include "check.h"

#include <time.h>

struct hw_config hw_config;

static char folder[] = "/tmp/unit_exec.XXXXXX";
static char path[64];

static const char *in(const char *name)
{
	snprintf(path, sizeof path, "%s/%s", folder, name);
	return path;
}

static const char *file(const char *name, const void *bytes, size_t n, mode_t mode)
{
	int fd = open(in(name), O_WRONLY | O_CREAT | O_TRUNC, mode);
	if (fd < 0 || write(fd, bytes, n) != (ssize_t)n || fchmod(fd, mode) || close(fd))
		CHECK(false, "writing %s: %s", path, strerror(errno));
	return path;
}

static const char *script(const char *name, const char *text)
{
	return file(name, text, strlen(text), 0755);
}

/* ---------------------------------------------------------------- programs */

/* Header, three program headers, interpreter, dynamic section, strings; loaded at 0x400000. */
struct program {
	Elf64_Ehdr e;
	Elf64_Phdr p[3];
	char interp[64];
	Elf64_Dyn d[4];
	char strings[128];
};

static struct program program(const char *interp, const char *needed)
{
	struct program x = {
		.e = {.e_ident = {0x7f, 'E', 'L', 'F', ELFCLASS64, ELFDATA2LSB, EV_CURRENT},
		      .e_type = ET_EXEC,
		      .e_machine = EM_X86_64,
		      .e_version = EV_CURRENT,
		      .e_phoff = offsetof(struct program, p),
		      .e_ehsize = sizeof(Elf64_Ehdr),
		      .e_phentsize = sizeof(Elf64_Phdr),
		      .e_phnum = 3},
		.p = {{.p_type = PT_LOAD, .p_vaddr = 0x400000, .p_filesz = sizeof x, .p_memsz = sizeof x},
		      {.p_type = PT_DYNAMIC,
		       .p_offset = offsetof(struct program, d),
		       .p_vaddr = 0x400000 + offsetof(struct program, d),
		       .p_filesz = sizeof x.d},
		      {.p_type = interp ? PT_INTERP : PT_NULL,
		       .p_offset = offsetof(struct program, interp),
		       .p_filesz = interp ? strlen(interp) + 1 : 0}},
		.d = {{DT_NEEDED, {1}},
		      {DT_NEEDED, {11}},
		      {DT_STRTAB, {0x400000 + offsetof(struct program, strings)}},
		      {DT_NULL, {0}}},
	};
	memcpy(x.strings + 1, "libc.so.6", 10);
	strcpy(x.strings + 11, needed);
	if (interp)
		strcpy(x.interp, interp);
	return x;
}

static bool refused_file(const void *bytes, size_t n)
{
	static int fd = -1;
	if (fd < 0)
		fd = memfd_create("program", 0);
	if (ftruncate(fd, 0) || pwrite(fd, bytes, n, 0) != (ssize_t)n)
		CHECK(false, "writing: %s", strerror(errno));
	return refused_by_descriptor(fd);
}

static const char glibc[] = "/lib64/ld-linux-x86-64.so.2", musl[] = "/lib/ld-musl-x86_64.so.1";

static void programs(void)
{
	struct program x = program(glibc, "libm.so.6");
	CHECK(!refused_file(&x, sizeof x), "a program of glibc takes the library");
	x = program(musl, "libm.so.6");
	CHECK(refused_file(&x, sizeof x), "a program of musl refuses it");
	x = program("/nix/store/0/lib/ld-musl-x86_64.so.1", "libm.so.6");
	CHECK(refused_file(&x, sizeof x), "wherever musl's loader lies");
	x = program("/opt/ld-musl-x/ld-linux-x86-64.so.2", "libm.so.6");
	CHECK(!refused_file(&x, sizeof x), "and not for a folder's name");
	static const char *const runtimes[] = {"libasan.so.8", "libtsan.so.2", "libclang_rt.asan-x86_64.so",
					       "libclang_rt.tsan-x86_64.so"};
	for (size_t i = 0; i < sizeof runtimes / sizeof *runtimes; i++) {
		x = program(glibc, runtimes[i]);
		CHECK(refused_file(&x, sizeof x), "a program with %s refuses it", runtimes[i]);
		x = program(NULL, runtimes[i]);
		CHECK(!refused_file(&x, sizeof x), "a static program ignores LD_PRELOAD");
	}
	static const char *const others[] = {"libubsan.so.1", "liblsan.so.0", "notlibasan.so.8", "libasan"};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		x = program(glibc, others[i]);
		CHECK(!refused_file(&x, sizeof x), "a program with %s takes it", others[i]);
	}
	x = program(glibc, "libm.so.6");
	x.e.e_machine = EM_AARCH64;
	CHECK(refused_file(&x, sizeof x), "a program of another architecture refuses it");
	x = program(glibc, "libm.so.6");
	x.e.e_ident[EI_CLASS] = ELFCLASS32;
	x.e.e_machine = EM_386;
	CHECK(refused_file(&x, sizeof x), "a program of 32 bits refuses it");
	x = program(NULL, "");
	CHECK(refuses(AT_FDCWD, file("ld-musl-x86_64.so.1", &x, sizeof x, 0755), false), "musl's loader as a program refuses it");
	CHECK(!refuses(AT_FDCWD, file("ld-linux-x86-64.so.2", &x, sizeof x, 0755), false), "glibc's does not");

	x = program(musl, "libasan.so.8");
	for (size_t n = 0; n < sizeof x; n++)
		refused_file(&x, n);
	CHECK(!refused_file(&x, sizeof(Elf64_Ehdr) - 1), "half a header tells nothing");
	uint64_t state = 7;
	for (int i = 0; i < 20000; i++) {
		x = program(i & 1 ? glibc : musl, "libasan.so.8");
		for (unsigned k = next_random(&state) % 4; k < 5; k++)
			((unsigned char *)&x)[next_random(&state) % sizeof x] ^= (unsigned char)(1u << next_random(&state) % 8);
		if (i % 16 == 0)
			x.e.e_phnum = 0xffff;
		refused_file(&x, sizeof x);
	}
	CHECK(true, "damaged programs are read to their end");
}

static void scripts(void)
{
	struct program x = program(musl, "");
	char interpreter[64], text[512];
	strcpy(interpreter, file("musl", &x, sizeof x, 0755));
	static const char *const forms[] = {"#!%s\n", "#! \t%s\n", "#!%s -x  y\n", "#!%s\t\n", "#!%s"};
	for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
		snprintf(text, sizeof text, forms[i], interpreter);
		CHECK(refuses(AT_FDCWD, script("script", text), false), "a script of a program of musl: %s", forms[i]);
	}
	char name[8] = "s0";
	for (int i = 1; i < 5; i++) {
		snprintf(text, sizeof text, "#!%s/%s\n", folder, i == 1 ? "musl" : name);
		name[1] = (char)('0' + i);
		script(name, text);
	}
	CHECK(refuses(AT_FDCWD, in("s4"), false), "scripts of scripts are followed");
	snprintf(text, sizeof text, "#!%s/round\n", folder);
	CHECK(!refuses(AT_FDCWD, script("round", text), false), "a script of itself comes to an end");
	CHECK(!refuses(AT_FDCWD, script("script", "#!\n"), false) && !refuses(AT_FDCWD, script("script", "#!"), false),
	      "an empty line names nothing");
	memset(text, 'x', sizeof text - 1);
	memcpy(text, "#!/", 3);
	text[sizeof text - 1] = 0;
	CHECK(!refuses(AT_FDCWD, script("script", text), false), "a name without an end names nothing");
	CHECK(!refuses(AT_FDCWD, script("script", "echo\n"), true), "a script without a first line is the shell's, which takes it");
	CHECK(!refuses(AT_FDCWD, script("script", ""), true), "an empty file");
}

static void not_programs(void)
{
	CHECK(!refuses(AT_FDCWD, in("missing"), true) && !refuses(AT_FDCWD, folder, true), "what is no file");
	if (mkfifo(in("fifo"), 0755) == 0)
		CHECK(!refuses(AT_FDCWD, path, true), "a pipe is not opened");
	CHECK(!refuses(-5, "x", false) && !refused_by_descriptor(-1) && !refused_by_descriptor(999), "no such descriptor");
	struct program x = program(musl, "");
	int fd = open(file("musl", &x, sizeof x, 0755), O_PATH);
	CHECK(refused_by_descriptor(fd), "a descriptor that can't be read is judged by its file");
	close(fd);
	int at = open(folder, O_RDONLY | O_DIRECTORY);
	CHECK(refuses(at, "musl", false), "a name in a folder");
	close(at);
}

static void searches(void)
{
	char found[PATH_MAX + NAME_MAX + 2], variable[4 * PATH_MAX], a[64], b[64], longer[2 * PATH_MAX];
	snprintf(a, sizeof a, "%s/a", folder);
	snprintf(b, sizeof b, "%s/b", folder);
	mkdir(a, 0755);
	mkdir(b, 0755);
	mkdir(in("a/d"), 0755);
	file("a/x", "x", 1, 0644);
	file("b/x", "x", 1, 0755);
	file("b/d", "x", 1, 0755);
	memset(longer, 'l', sizeof longer - 1);
	longer[sizeof longer - 1] = 0;
	char *env[] = {"A=1", variable, "PATH=/later", NULL};
	environ = env;
	snprintf(variable, sizeof variable, "PATH=/nowhere:%s:%s:%s", longer, a, b);
	CHECK(search("x", found, false) && !strncmp(found, b, strlen(b)) && !strcmp(found + strlen(b), "/x"),
	      "what may not be run is passed over, found %s", found);
	CHECK(search("d", found, false) && !strncmp(found, b, strlen(b)), "folders are passed over");
	CHECK(!search("y", found, false) && !search("", found, false), "not there");
	longer[NAME_MAX + 1] = 0;
	CHECK(!search(longer, found, false), "a name that is too long");
	CHECK(chdir(b) == 0, "going there");
	strcpy(variable, "PATH=/nowhere:");
	CHECK(search("x", found, false) && !strcmp(found, "x"), "an empty part is the working folder, found %s", found);
	CHECK(!search("x", found, true), "which is not known when file actions may change it");
	strcpy(variable, "PATH=");
	CHECK(search("x", found, false) && !strcmp(found, "x"), "an empty PATH too");
	strcpy(variable, "B=");
	env[2] = NULL;
	CHECK(search("sh", found, false) && !strcmp(found, "/bin/sh"), "without PATH there is a default");
}

/* ---------------------------------------------------------------- the environment */

static void lists(void)
{
	strcpy(own_name, "libheapwire.so");
	static const struct {
		const char *list, *want;
	} cases[] = {
		{"LD_PRELOAD=/x/libheapwire.so", NULL},
		{"LD_PRELOAD=libheapwire.so", NULL},
		{"LD_PRELOAD= :/x/libheapwire.so: ", NULL},
		{"LD_PRELOAD=./libheapwire.so:/y/libheapwire.so", NULL},
		{"LD_PRELOAD=/x/libheapwire.so:/y/b.so", "LD_PRELOAD=/y/b.so"},
		{"LD_PRELOAD=/y/b.so /x/libheapwire.so", "LD_PRELOAD=/y/b.so"},
		{"LD_PRELOAD=a.so:/x/libheapwire.so b.so:c.so", "LD_PRELOAD=a.so b.so:c.so"},
		{"LD_PRELOAD=$ORIGIN/libheapwire.so:a.so", "LD_PRELOAD=a.so"},
		/* not ours: as they are, to the byte */
		{"LD_PRELOAD=/x/notlibheapwire.so::b.so ", "LD_PRELOAD=/x/notlibheapwire.so::b.so "},
		{"LD_PRELOAD=/x/libheapwire.so.1", "LD_PRELOAD=/x/libheapwire.so.1"},
		{"LD_PRELOAD=", "LD_PRELOAD="},
		{"LD_PRELOAD", "LD_PRELOAD"},
		{"LD_PRELOADS=/x/libheapwire.so", "LD_PRELOADS=/x/libheapwire.so"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char *env[] = {"A=1", (char *)cases[i].list, "", "Z=2", NULL};
		size_t need = room_needed(env);
		bool changed = !cases[i].want || strcmp(cases[i].want, cases[i].list);
		CHECK((need > 0) == changed, "%s takes %zu bytes", cases[i].list, need);
		if (!need)
			continue;
		void *room = malloc(need); /* the sanitizer watches its end */
		char *const *v = without_us(room, env);
		size_t at = 1;
		CHECK(!strcmp(v[0], "A=1"), "what comes before stays");
		if (cases[i].want)
			CHECK(!strcmp(v[at++], cases[i].want), "%s becomes %s", cases[i].list, v[1]);
		CHECK(v[at] == env[2] && v[at + 1] == env[3] && !v[at + 2], "what comes after stays, the very strings");
		free(room);
	}
	char *twice[] = {"LD_PRELOAD=/x/libheapwire.so:a", "B=1", "LD_PRELOAD=b:/x/libheapwire.so", NULL};
	void *room = malloc(room_needed(twice));
	char *const *v = without_us(room, twice);
	CHECK(!strcmp(v[0], "LD_PRELOAD=a") && !strcmp(v[2], "LD_PRELOAD=b") && !v[3], "the variable may be there twice");
	free(room);
	CHECK(!room_needed(NULL) && !room_needed((char *[]){NULL}), "no environment");
}

/* ---------------------------------------------------------------- the calls */

static void calls(void)
{
	hw_config.exec_guard = true;
	hw_exec_init();
	CHECK(active && *own_name, "the own name is known: %s", own_name);
	char preload_us[512];
	snprintf(preload_us, sizeof preload_us, "LD_PRELOAD=/x/%s", own_name);
	char *env[] = {preload_us, NULL}, *argv[] = {"x", NULL};
	static const char *const bad[] = {"missing", "a", "a/x", "b/x"};
	static const int want[] = {ENOENT, EACCES, EACCES, ENOEXEC};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		errno = 0;
		CHECK(execve(in(bad[i]), argv, env) == -1 && errno == want[i], "%s: %s", bad[i], strerror(errno));
	}
	struct program x = program(musl, "");
	x.e.e_phentsize--; /* Linux refuses it, after it was judged */
	errno = 0;
	CHECK(execve(file("musl", &x, sizeof x, 0755), argv, env) == -1 && errno == ENOEXEC, "%s", strerror(errno));
	pid_t pid = 0;
	CHECK(posix_spawn(&pid, in("missing"), NULL, NULL, argv, env) == ENOENT, "posix_spawn returns its error");
	errno = 0;
	CHECK(execveat(AT_FDCWD, "", argv, env, 0) == -1 && errno == ENOENT, "an empty path");
}

int main(int argc, char **argv)
{
	if (argc > 1) { /* what it costs to judge a file */
		struct timespec t[2];
		clock_gettime(CLOCK_MONOTONIC, &t[0]);
		bool r = false;
		for (int i = 0; i < 20000; i++)
			r = refuses(AT_FDCWD, argv[1], false);
		clock_gettime(CLOCK_MONOTONIC, &t[1]);
		printf("%s: %s, %.2f us\n", argv[1], r ? "refuses" : "takes it",
		       ((double)(t[1].tv_sec - t[0].tv_sec) * 1e9 + (double)(t[1].tv_nsec - t[0].tv_nsec)) / 20000e3);
		return 0;
	}
	if (!mkdtemp(folder))
		return 1;
	programs();
	scripts();
	not_programs();
	lists();
	searches();
	calls();
	char command[64];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	return system(command) ? 1 : checked("exec");
}
