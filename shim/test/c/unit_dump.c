/* The writer, the scan for functions, and the small readers. */
#include "../../src/dump.c"

#include "check.h"

#include <sys/mman.h>

struct hw_config hw_config;
struct hw_counters hw_count;
struct hw_identity hw_identity;

/* What dump.c asks other files for; none of it is under test here. */
int hw_alloc_dump(const char *path) { (void)path; return ENOSPC; }
bool hw_alloc_stats(struct hw_alloc_stats *s) { (void)s; return false; }
uint64_t hw_alloc_sample_bytes(void) { return 524288; }
bool hw_alloc_accum(void) { return false; }
bool hw_alloc_unbiased(void) { return true; }
const char *hw_alloc_version(void) { return ""; }
void hw_native_refresh(void) {}
const char *hw_py_version(void) { return ""; }
const char *hw_py_frames_state(void) { return "off: test"; }
void hw_identity_read(void) {}
int hw_identity_write(int fd) { return write(fd, "{}\n", 3) == 3 ? 0 : errno; }
unsigned hw_rate_changes(uint64_t *bytes, uint64_t *objects) { *bytes = *objects = 0; return 0; }
int hw_py_minor(void) { return 12; }
const char *hw_objects_state(void) { return "off: test"; }
uint64_t hw_slots_samples(void) { return 0; }
uint64_t hw_slots_lost(void) { return 0; }
void hw_slots_write(struct hw_out *o, void (*use)(uint64_t)) { (void)o; (void)use; }
static bool giants;
uint64_t hw_giant_count(void) { return 0; }
uint64_t hw_giant_lost(void) { return 0; }
void hw_giant_told(bool arrived) { (void)arrived; }
void hw_giant_write(struct hw_out *o, void (*use)(uint64_t)) { (void)o; (void)use; giants = true; }
bool hw_cgroup_figures(uint64_t *current, uint64_t *max) { *current = *max = 0; return false; }
bool hw_intern_get(uint32_t id, struct hw_function *f)
{
	static const char name[] = "a\tb\nc\\d\re";
	*f = (struct hw_function){"file.py", name, 7, sizeof name - 1, 3};
	return id != 9;
}

static int text_file(const char *text, size_t n)
{
	int fd = memfd_create("text", 0);
	if (fd < 0 || write(fd, text, n) != (ssize_t)n)
		abort();
	lseek(fd, 0, SEEK_SET);
	return fd;
}

static bool is_used(uint32_t id)
{
	return used[id / 64] >> id % 64 & 1;
}

int main(void)
{
	char text[256];
	int n = sprintf(text, "@ 0x7f00 0x%llx 0x%llx\n", HW_TAG | 5ull << HW_LINE_BITS | 77, HW_TAG | (uint64_t)HW_TABLE_SIZE << HW_LINE_BITS);
	int fd = text_file(text, (size_t)n);
	CHECK(scan(fd) == 0 && is_used(5) && is_used(HW_TABLE_SIZE) && !is_used(77), "ids are found behind their tag");
	close(fd);
	fd = text_file("0x0x507900000140004d 0x5079000001", 33);
	CHECK(scan(fd) == 0 && is_used(5), "a tag is found after a false start, and a cut one is no id");
	close(fd);
	/* Every position of a token relative to the end of a block. */
	int missed = 0;
	static char big[sizeof buffer + 64];
	for (size_t at = sizeof buffer - 20; at <= sizeof buffer + 2; at++) {
		memset(big, ' ', sizeof big);
		memcpy(big + at, "0x5079000001c0000b", 18);
		fd = text_file(big, sizeof big);
		scan(fd);
		missed += !is_used(7);
		close(fd);
	}
	CHECK(missed == 0, "a token over the end of a block is found: %d missed", missed);

	memset(used, 0, sizeof used);
	use_address(HW_TAG | 5ull << HW_LINE_BITS | 3);
	use_address(5ull << HW_LINE_BITS);
	use_address(HW_MARK_CUT);
	use_address(HW_TAG | 9ull << HW_LINE_BITS);
	CHECK(used[0] == (1ull << 5 | 1ull << 9), "only tokens of functions are used");
	fd = text_file("", 0);
	struct hw_out o;
	hw_out_begin(&o, fd, buffer, sizeof buffer);
	frames(&o);
	CHECK(hw_out_end(&o) == 0, "frames can be written");
	char got[256] = "";
	if (pread(fd, got, sizeof got - 1, 0) < 0)
		abort();
	CHECK(!strcmp(got, "HEAPWIRE_FRAMES: 1\n5\ta\\tb\\nc\\\\d\\re\tfile.py\t3\n\n"),
	      "names are escaped, an id without text has no row: %s", got);
	close(fd);

	char small[8];
	fd = text_file("", 0);
	hw_out_begin(&o, fd, small, sizeof small);
	hw_out_dec(&o, UINT64_MAX);
	hw_out_char(&o, ' ');
	hw_out_hex(&o, 0);
	hw_out_hex(&o, 0xdeadbeefull);
	CHECK(hw_out_end(&o) == 0 && pread(fd, got, sizeof got, 0) == 30 && !memcmp(got, "18446744073709551615 0deadbeef", 30),
	      "a small buffer writes the same");
	close(fd);
	fd = open("/dev/full", O_WRONLY);
	hw_out_begin(&o, fd, small, sizeof small);
	hw_out_str(&o, "more than fits into the buffer");
	CHECK(hw_out_end(&o) == ENOSPC, "the first failure is kept");
	close(fd);

	uint64_t v = 0;
	CHECK(kb_line("Name:\tx\nVmRSS:\t  12 kB\nRssAnon: 7 kB\n", "RssAnon", &v) && v == 7168, "a line of /proc in bytes");
	CHECK(!kb_line("VmRSSx: 3 kB\n", "VmRSS", &v), "a key is the whole word");
	CHECK(hw_stat_field(HW_STAT_START) > 0 && hw_stat_field(20) == 1, "fields of /proc/self/stat, the threads among them");
	CHECK(hw_threads() == 1, "the threads, without a descriptor");

	/* A dump that fails leaves nothing behind and is counted. */
	char dir[] = "/tmp/heapwire-unit-XXXXXX";
	if (!mkdtemp(dir))
		abort();
	snprintf(hw_config.spool, sizeof hw_config.spool, "%s/a/b", dir);
	strcpy(hw_identity.folder, "host-1-2");
	complained = true;
	CHECK(hw_dump("interval", "") == ENOSPC && failed == 1 && seq == 0, "the errno of a failed dump comes back");
	char path[4096];
	struct stat st;
	snprintf(path, sizeof path, "%s/host-1-2/.000001.tmp", hw_config.spool);
	CHECK(stat(path, &st) && errno == ENOENT, "its file is gone");
	snprintf(path, sizeof path, "%s/host-1-2/process.json", hw_config.spool);
	CHECK(!stat(path, &st) && (st.st_mode & 07777) == 0600, "process.json is the owner's alone");
	snprintf(path, sizeof path, "%s/host-1-2", hw_config.spool);
	CHECK(!stat(path, &st) && (st.st_mode & 07777) == 0700, "and so is the folder");
	snprintf(path, sizeof path, "%s/host-1-2/000041.interval.heap", hw_config.spool);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	folder[0] = 0;
	hw_dump("interval", "");
	CHECK(seq == 41, "a process that was exec'ed over goes on with the folder's sequence: %llu", (unsigned long long)seq);
	char place[4096];
	CHECK(hw_dump_place(place, sizeof place) == 0 && strstr(place, "/host-1-2/000042"), "a place has the next number: %s", place);
	CHECK(hw_dump_place(place, 9) == ERANGE, "a place that does not fit is an error");
	hw_dump("interval", "");
	CHECK(seq == 43, "a failed dump gives its number back: %llu", (unsigned long long)seq);
	snprintf(path, sizeof path, "%s/host-1-2/000044.oom.cuda.json", hw_config.spool);
	close(open(path, O_CREAT | O_WRONLY, 0600));
	folder[0] = 0;
	CHECK(hw_dump_place(place, sizeof place) == 0 && strstr(place, "/host-1-2/000045"), "a snapshot's number is taken: %s", place);
	snprintf(path, sizeof path, "rm -rf %s", hw_config.spool);
	CHECK(!system(path) && hw_dump_place(place, sizeof place) == 0 && !access(hw_config.spool, W_OK),
	      "a deleted spool is made again for a place");
	*strrchr(place, '/') = 0;
	CHECK(!stat(place, &st) && S_ISDIR(st.st_mode), "with the folder in it");
	hw_dump_forked();
	CHECK(hw_dump_place(place, sizeof place) == 0 && strstr(place, "/000001"), "a forked child counts from one: %s", place);

	hw_config.spool_is_default = true;
	chmod(hw_config.spool, 0777);
	folder[0] = 0;
	CHECK(hw_dump("interval", "") == EPERM, "a default spool that others may write to is not taken");
	snprintf(path, sizeof path, "%s/link", dir);
	if (symlink(hw_config.spool, path))
		abort();
	strcpy(hw_config.spool, path);
	folder[0] = 0;
	CHECK(hw_dump("interval", "") == ENOTDIR, "nor one that is a link");
	snprintf(path, sizeof path, "rm -r %s", dir);
	return system(path) || checked("dump");
}
