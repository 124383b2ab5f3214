// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What jemalloc says of itself at the end of a program: the library's settings, HEAPWIRE_ALLOCATOR, then MALLOC_CONF.
func TestTheUsersOwnAllocatorSettingsWin(t *testing.T) {
	p := newestPython(t)
	option := func(r result, name string) string {
		m := regexp.MustCompile(`(?m)^ *opt\.` + name + `: (\S+)`).FindStringSubmatch(r.stderr)
		if m == nil {
			t.Fatalf("opt.%s is not told: exit status %d\n%.2000s", name, r.code, r.stderr)
		}
		return m[1]
	}
	for _, c := range []struct {
		env                   []string
		decay, oversize, mode string
	}{
		{[]string{"MALLOC_CONF=stats_print:true"}, "10000", "0", "fast"},
		{[]string{"MALLOC_CONF=stats_print:true,dirty_decay_ms:7000"}, "7000", "0", "fast"},
		{[]string{"MALLOC_CONF=stats_print:true", "HEAPWIRE_ALLOCATOR=lean"}, "1000", "8388608", "lean"},
		{[]string{"MALLOC_CONF=stats_print:true,dirty_decay_ms:7000", "HEAPWIRE_ALLOCATOR=Lean"}, "7000", "8388608", "lean"},
		{[]string{"MALLOC_CONF=stats_print:true", "HEAPWIRE_ALLOCATOR=nonsense"}, "10000", "0", "fast"},
	} {
		// At the default interval a program that does nothing may have no sample, and leaves no dump then.
		r := under(t, library, append(c.env, "HEAPWIRE_SAMPLE_BYTES=16KiB"), p.Path, "-c", "pass")
		if decay, oversize := option(r, "dirty_decay_ms"), option(r, "oversize_threshold"); decay != c.decay || oversize != c.oversize {
			t.Errorf("%q: dirty_decay_ms %s, oversize_threshold %s", c.env, decay, oversize)
		}
		if strings.Contains(r.stderr, "Invalid conf") {
			t.Errorf("%q: jemalloc does not know an option\n%.500s", c.env, r.stderr)
		}
		if got := r.meta(t, r.dumps[len(r.dumps)-1], "allocator"); got != c.mode {
			t.Errorf("%q: allocator=%s in the dump", c.env, got)
		}
	}
}

// A large buffer that is freed is not given back to the kernel at once, and cleared by new pages when it is asked for again.
func TestALargeBufferIsUsedAgain(t *testing.T) {
	const program = `
import resource
def faults(): return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for i in range(3): bytearray(16 << 20)
before = faults()
for i in range(20): bytearray(16 << 20)
print(faults() - before)`
	p := newestPython(t)
	count := func(env ...string) int {
		r := under(t, library, append(env, "HEAPWIRE_INTERVAL=0", "HEAPWIRE_JUMP=off"), p.Path, "-c", program)
		return number(t, strings.TrimSpace(r.stdout))
	}
	fast, lean := count(), count("HEAPWIRE_ALLOCATOR=lean")
	if fast > 20*4096/4 || lean < 20*4096/2 {
		t.Errorf("%d page faults, lean %d", fast, lean)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
