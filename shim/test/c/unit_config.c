/* The environment's values, good and bad. */
#include "../../src/config.c"

#include "check.h"

static int said;

void hw_say(const char *fmt, ...)
{
	(void)fmt;
	said++;
}

static void read_with(const char *name, const char *value)
{
	clearenv();
	memset(bad, 0, sizeof bad);
	said = 0;
	if (name)
		setenv(name, value, 1);
	hw_config_read();
	hw_config_complain();
}

int main(void)
{
	read_with(NULL, NULL);
	CHECK(hw_config.enabled && hw_config.target == HW_TARGET_AUTO && hw_config.interval_ns == 60000000000ull &&
		      hw_config.lg_sample == 19 && !hw_config.lg_sample_set && hw_config.python_frames && hw_config.exit_dump,
	      "the defaults are those of the table");
	char spool[64];
	snprintf(spool, sizeof spool, "/tmp/heapwire-%u", (unsigned)geteuid());
	CHECK(!strcmp(hw_config.spool, spool) && hw_config.spool_is_default, "the default spool is the user's own in /tmp, is %s",
	      hw_config.spool);
	read_with("TMPDIR", "/var/tmp");
	CHECK(!strncmp(hw_config.spool, "/var/tmp/heapwire-", 18), "TMPDIR moves the default spool");
	read_with("TMPDIR", "relative");
	CHECK(!strncmp(hw_config.spool, "/tmp/heapwire-", 14), "a relative TMPDIR is not taken");
	read_with("HEAPWIRE_SPOOL", "/data/spool");
	CHECK(!strcmp(hw_config.spool, "/data/spool") && !hw_config.spool_is_default, "a spool that is named is taken as it is");
	read_with("HEAPWIRE_SPOOL", "here");
	CHECK(hw_config.spool[0] == '/' && strstr(hw_config.spool, "/here"), "a relative spool is made absolute: the job may chdir");

	static const struct {
		const char *value;
		uint64_t ns;
	} durations_ok[] = {{"100ms", 100000000ull}, {"1", 1000000000ull},	{"5s", 5000000000ull}, {"2m", 120000000000ull},
			    {"24h", 86400000000000ull}, {"0", 0},		{"0s", 0},	       {"90S", 90000000000ull}};
	for (size_t i = 0; i < sizeof durations_ok / sizeof *durations_ok; i++) {
		read_with("HEAPWIRE_INTERVAL", durations_ok[i].value);
		CHECK(hw_config.interval_ns == durations_ok[i].ns && !said, "interval %s", durations_ok[i].value);
	}
	static const char *const durations_bad[] = {"99ms", "25h", "-1", "1.5s", "s", "60 s", "1d", "99999999999999999999999"};
	for (size_t i = 0; i < sizeof durations_bad / sizeof *durations_bad; i++) {
		read_with("HEAPWIRE_INTERVAL", durations_bad[i]);
		CHECK(hw_config.interval_ns == 60000000000ull && said == 1, "interval %s gives the default and one message",
		      durations_bad[i]);
	}
	static const struct {
		const char *value;
		unsigned lg;
	} sizes_ok[] = {{"1", 0}, {"512KiB", 19}, {"524288", 19}, {"524289", 19}, {"1m", 20}, {"1GiB", 30}, {"1023b", 9}};
	for (size_t i = 0; i < sizeof sizes_ok / sizeof *sizes_ok; i++) {
		read_with("HEAPWIRE_SAMPLE_BYTES", sizes_ok[i].value);
		CHECK(hw_config.lg_sample == sizes_ok[i].lg && hw_config.lg_sample_set && !said, "sample bytes %s", sizes_ok[i].value);
	}
	static const char *const sizes_bad[] = {"0", "2048GiB", "17179869184g", "x", "1 KiB", "512kb"};
	for (size_t i = 0; i < sizeof sizes_bad / sizeof *sizes_bad; i++) {
		read_with("HEAPWIRE_SAMPLE_BYTES", sizes_bad[i]);
		CHECK(hw_config.lg_sample == 19 && !hw_config.lg_sample_set && said == 1, "sample bytes %s gives the default",
		      sizes_bad[i]);
	}
	read_with(NULL, NULL);
	CHECK(hw_config.giant_bytes == 1ull << 30 && hw_config.npressure == 3 && hw_config.pressure[0] == 80 &&
		      hw_config.pressure[2] == 95 && hw_config.psi_percent == 40 && hw_config.jump_percent == 20 &&
		      hw_config.jump_bytes == 1ull << 30 && hw_config.gap_ns == 5000000000ull && hw_config.signal == 0,
	      "the triggers' defaults");
	CHECK(hw_config.export == HW_INPROC_AUTO, "who delivers follows from the sinks' variables");
	read_with("HEAPWIRE_EXPORT", "Inproc");
	CHECK(hw_config.export == HW_INPROC_ALWAYS && !said, "an exporter in the process");
	read_with("HEAPWIRE_EXPORT", "off");
	CHECK(hw_config.export == HW_INPROC_OFF && !said, "none");
	read_with("HEAPWIRE_EXPORT", "on");
	CHECK(hw_config.export == HW_INPROC_AUTO && said == 1, "what is no way of delivery gives the default and one message");
	read_with("HEAPWIRE_GIANT", "0");
	CHECK(hw_config.giant_bytes == 0 && !said, "giants are off");
	read_with("HEAPWIRE_PRESSURE", "50,75%,99");
	CHECK(hw_config.npressure == 3 && hw_config.pressure[1] == 75 && !said, "levels with and without their sign");
	read_with("HEAPWIRE_PRESSURE", "off");
	CHECK(hw_config.npressure == 0 && !said, "no levels");
	static const char *const levels_bad[] = {"80,70", "0,50", "101", "80,", "x", "80;90", "1,2,3,4,5,6,7,8,9"};
	for (size_t i = 0; i < sizeof levels_bad / sizeof *levels_bad; i++) {
		read_with("HEAPWIRE_PRESSURE", levels_bad[i]);
		CHECK(hw_config.npressure == 3 && hw_config.pressure[0] == 80 && said == 1, "levels %s give the default", levels_bad[i]);
	}
	read_with("HEAPWIRE_JUMP", "512MiB,50%");
	CHECK(hw_config.jump_percent == 50 && hw_config.jump_bytes == 512ull << 20 && !said, "a jump by share and size");
	read_with("HEAPWIRE_JUMP", "10%");
	CHECK(hw_config.jump_percent == 10 && hw_config.jump_bytes == 0 && !said, "a jump by share alone");
	read_with("HEAPWIRE_JUMP", "off");
	CHECK(hw_config.jump_percent == 0 && hw_config.jump_bytes == 0 && !said, "no jump");
	static const char *const jumps_bad[] = {"10%,20%", "1GiB,2GiB", "0%", "%", "10%,,", "1d"};
	for (size_t i = 0; i < sizeof jumps_bad / sizeof *jumps_bad; i++) {
		read_with("HEAPWIRE_JUMP", jumps_bad[i]);
		CHECK(hw_config.jump_percent == 20 && hw_config.jump_bytes == 1ull << 30 && said == 1, "jump %s gives the default",
		      jumps_bad[i]);
	}
	static const struct {
		const char *value;
		int number;
	} signals_ok[] = {{"SIGUSR2", SIGUSR2}, {"usr1", SIGUSR1}, {"40", 40}, {"off", 0}};
	for (size_t i = 0; i < sizeof signals_ok / sizeof *signals_ok; i++) {
		read_with("HEAPWIRE_SIGNAL", signals_ok[i].value);
		CHECK(hw_config.signal == signals_ok[i].number && !said, "signal %s", signals_ok[i].value);
	}
	static const char *const signals_bad[] = {"KILL", "9", "SIGFOO", "65", "-1", "10x"};
	for (size_t i = 0; i < sizeof signals_bad / sizeof *signals_bad; i++) {
		read_with("HEAPWIRE_SIGNAL", signals_bad[i]);
		CHECK(hw_config.signal == 0 && said == 1, "signal %s is refused", signals_bad[i]);
	}

	read_with("HEAPWIRE", "off");
	CHECK(!hw_config.enabled, "HEAPWIRE=off turns everything off");
	read_with("HEAPWIRE", "maybe");
	CHECK(hw_config.enabled && said == 1, "a switch that is neither on nor off is said and left at its default");
	read_with("HEAPWIRE_TARGET", "all");
	CHECK(hw_config.target == HW_TARGET_ALL, "every process is a target");
	read_with("HEAPWIRE_TARGET", "");
	CHECK(hw_config.target == HW_TARGET_AUTO && !said, "an empty value is no value");
	char longer[sizeof hw_config.spool + 8];
	memset(longer, 'x', sizeof longer - 1);
	longer[0] = '/';
	longer[sizeof longer - 1] = 0;
	read_with("HEAPWIRE_SPOOL", longer);
	CHECK(hw_config.spool_is_default && said == 1, "a spool path that is too long is said and the default taken");
	const char *type, *dflt, *bounds, *what;
	size_t n = 0;
	while (hw_config_row(n, &type, &dflt, &bounds, &what)) {
		CHECK(*type && *dflt && *what, "row %zu of the table is whole", n);
		n++;
	}
	CHECK(n == NROWS, "the table has %zu rows", n);
	return checked("config");
}
