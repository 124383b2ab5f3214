// SPDX-License-Identifier: Apache-2.0

package jemalloc_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/convert/jemalloc"
)

func accountDump(meta, mappings string) string {
	return header + "@ 0x1110\n  t*: 9: 900 [0: 0]\n" + maps + "\nHEAPWIRE_META: 1\nreason=exit\n" + meta +
		"\nHEAPWIRE_BUILD_IDS: 1\n\nHEAPWIRE_MAPPINGS: 1\n" + mappings + "\nHEAPWIRE_FRAMES: 1\n\n"
}

const accountMeta = "rss=10000\nanon=7000\nfile=2000\nallocated=1500\npart_allocator=3000\npart_python_arenas=2048\npart_stacks=100\npart_heap=0\n" +
	"part_files=2000\npart_shared=1000\npart_other=1700\npart_sum=9848\npython_arenas=2\npython_block_bytes=1024\nthread_stacks=3\n"

func TestAccount(t *testing.T) {
	dump := parse(t, accountDump(accountMeta, "files\t900\t4096\t2\t/a b/c\\td\nshared\t800\t8192\t1\t/dev/shm/x\n"))
	want := []jemalloc.Mapping{{"files", 900, 4096, 2, "/a b/c\td"}, {"shared", 800, 8192, 1, "/dev/shm/x"}}
	if !reflect.DeepEqual(dump.Mappings, want) {
		t.Errorf("mappings %+v, want %+v", dump.Mappings, want)
	}
	parts, resident := dump.Meta.Account()
	sum := int64(0)
	for _, p := range parts {
		sum += p.Bytes
	}
	last := parts[len(parts)-1]
	if resident != 10000 || sum != resident || last.Name != "not explained" || last.Bytes != 152 {
		t.Errorf("%d bytes in %+v", resident, parts)
	}
	var b strings.Builder
	if err := jemalloc.WriteAccount(&b, dump.Meta, dump.Mappings); err != nil {
		t.Fatal(err)
	}
	const text = "resident memory: 9.8 KiB, anon 6.8 KiB, file 2.0 KiB\n" +
		"   2.9 KiB  30.0%    jemalloc: 1.5 KiB allocated, 0 B active, 0 B of its own, 0 B retained\n" +
		"   2.0 KiB  20.5%    pymalloc arenas: 2 arenas, 1.0 KiB in blocks in use\n" +
		"     100 B   1.0%    stacks: 3 stacks\n" +
		"   2.0 KiB  20.0%    mapped files\n" +
		"    1000 B  10.0%    shared memory\n" +
		"   1.7 KiB  17.0%    other anonymous\n" +
		"     152 B   1.5%    not explained\n" +
		"                      largest mappings by name\n" +
		"     900 B   9.0%    /a b/c\uFFFDd\n" +
		"     800 B   8.0%    /dev/shm/x\n"
	if squeeze(b.String()) != squeeze(text) {
		t.Errorf("got\n%swant\n%s", b.String(), text)
	}
	for _, meta := range []string{"", "rss=5\n", "part_sum=7\n"} {
		if parts, _ := parse(t, accountDump(meta, "")).Meta.Account(); parts != nil {
			t.Errorf("%q has the account %+v", meta, parts)
		}
	}
}

// squeeze makes runs of blanks one.
func squeeze(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.Join(strings.Fields(lines[i]), " ")
	}
	return strings.Join(lines, "\n")
}

func TestMappingRowsThatAreOdd(t *testing.T) {
	for _, row := range []string{"files\t1\t2\t3", "files\t1\t2\tx\t/a", "files\t-1\t2\t3\t/a", "\t1\t2\t3\t/a", "files\t1\t2\t3 4\t/a", "files\t18446744073709551615\t2\t3\t/a"} {
		dump := parse(t, accountDump(accountMeta, row+"\nshared\t1\t2\t3\t/b\n"))
		if len(dump.Mappings) != 1 || dump.Mappings[0].Name != "/b" || dump.Report.GarbageLines != 1 {
			t.Errorf("%q: %+v, %d lines of garbage", row, dump.Mappings, dump.Report.GarbageLines)
		}
	}
	dump := parse(t, accountDump("", strings.Repeat("files\t1\t2\t3\t/b\n", 3000)))
	if len(dump.Mappings) != 1024 {
		t.Errorf("%d mappings are kept", len(dump.Mappings))
	}
}
