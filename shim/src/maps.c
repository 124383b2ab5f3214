/* maps.c: what is mapped where, from /proc/self/maps, and what it says of itself, from its ELF header in memory.
 *
 * Runs on the clock thread. dl_iterate_phdr knows the same, but waits for a lock of the loader that a thread may hold while it
 * waits for the GIL (a Python callback of dl_iterate_phdr, as threadpoolctl has), while the GIL's holder forks and waits for
 * us. Reading the kernel's list waits for nobody. An object may be unmapped between the list and the look at it, so its memory
 * is copied by process_vm_readv, which fails where a load would fault.
 *
 * proc_pid_maps(5): start-end perms offset major:minor inode path. elf.h for the rest.
 */
#include "maps.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

static char buffer[64 << 10];

static bool parse(char *line, struct hw_mapping *m)
{
	char *p;
	m->start = strtoull(line, &p, 16);
	if (*p++ != '-')
		return false;
	m->end = strtoull(p, &p, 16);
	if (*p != ' ' || strlen(p) < 6)
		return false;
	m->executable = p[3] == 'x';
	m->shared = p[4] == 's';
	m->closed = p[1] != 'r' && p[2] != 'w';
	m->offset = strtoull(p + 6, &p, 16);
	p += strspn(p, " ");
	p += strcspn(p, " "); /* device */
	m->inode = strtoull(p, &p, 10);
	m->path = p + strspn(p, " ");
	return true;
}

void hw_maps_each(bool (*each)(const struct hw_mapping *m, void *arg), void *arg)
{
	int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return;
	size_t have = 0;
	bool skipping = false, go = true; /* skipping: the rest of a line that was longer than the buffer */
	while (go) {
		ssize_t n = read(fd, buffer + have, sizeof buffer - 1 - have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
		buffer[have] = 0;
		char *line = buffer, *end;
		while (go && (end = memchr(line, '\n', (size_t)(buffer + have - line)))) {
			*end = 0;
			struct hw_mapping m;
			if (!skipping && parse(line, &m))
				go = each(&m, arg);
			skipping = false;
			line = end + 1;
		}
		have = (size_t)(buffer + have - line);
		if (have == sizeof buffer - 1) {
			skipping = true;
			have = 0;
		} else {
			memmove(buffer, line, have);
		}
	}
	close(fd);
}

bool hw_maps_read(uintptr_t at, void *to, size_t n)
{
	struct iovec local = {to, n}, remote = {(void *)at, n};
	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == (ssize_t)n;
}

/* NT_GNU_BUILD_ID among notes; name and descriptor are padded to four bytes. */
static void find_build_id(const unsigned char *p, size_t n, struct hw_object *o)
{
	Elf64_Nhdr h;
	while (n >= sizeof h) {
		memcpy(&h, p, sizeof h);
		size_t name = (h.n_namesz + 3ul) & ~3ul, desc = (h.n_descsz + 3ul) & ~3ul;
		p += sizeof h;
		n -= sizeof h;
		if (name > n || desc > n - name)
			return;
		if (h.n_type == NT_GNU_BUILD_ID && h.n_namesz == 4 && !memcmp(p, "GNU", 4) && h.n_descsz <= sizeof o->id) {
			memcpy(o->id, p + name, h.n_descsz);
			o->id_len = h.n_descsz;
			return;
		}
		p += name + desc;
		n -= name + desc;
	}
}

bool hw_maps_object(const struct hw_mapping *m, struct hw_object *o)
{
	Elf64_Ehdr e;
	Elf64_Phdr ph[64];
	if (m->offset || m->end - m->start < sizeof e || !hw_maps_read(m->start, &e, sizeof e) || memcmp(e.e_ident, ELFMAG, SELFMAG) ||
	    e.e_ident[EI_CLASS] != ELFCLASS64 || e.e_phentsize != sizeof *ph || !e.e_phnum || e.e_phnum > sizeof ph / sizeof *ph ||
	    e.e_phoff > m->end - m->start - sizeof e || !hw_maps_read(m->start + e.e_phoff, ph, e.e_phnum * sizeof *ph))
		return false;
	uintptr_t bias = 0, high = 0;
	bool based = false;
	for (unsigned i = 0; i < e.e_phnum; i++) {
		if (ph[i].p_type != PT_LOAD)
			continue;
		if (!based) {
			/* The segment at file offset 0 is the one that is mapped here. */
			bias = m->start - (ph[i].p_vaddr - ph[i].p_offset);
			based = true;
		}
		if (ph[i].p_vaddr + ph[i].p_memsz > high)
			high = ph[i].p_vaddr + ph[i].p_memsz;
	}
	if (!based || bias + high <= m->start)
		return false;
	o->end = bias + high;
	o->id_len = 0;
	o->eh_frame_hdr = 0;
	for (unsigned i = 0; i < e.e_phnum; i++)
		if (ph[i].p_type == PT_GNU_EH_FRAME)
			o->eh_frame_hdr = bias + ph[i].p_vaddr;
	for (unsigned i = 0; i < e.e_phnum && !o->id_len; i++) {
		unsigned char notes[4096];
		size_t n = ph[i].p_memsz < sizeof notes ? ph[i].p_memsz : sizeof notes;
		if (ph[i].p_type == PT_NOTE && hw_maps_read(bias + ph[i].p_vaddr, notes, n))
			find_build_id(notes, n, o);
	}
	return true;
}
