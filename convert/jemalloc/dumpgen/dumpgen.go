// SPDX-License-Identifier: Apache-2.0

package dumpgen

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strings"
	"time"
)

// Dump is a heap dump.
type Dump struct {
	SampleBytes int64
	// Raw prints the header as the sum of the stacks, as jemalloc does with prof_unbias:false.
	Raw      bool
	Stacks   []Stack
	Threads  []string // names of the threads 0, 1, ...; "" for none
	Mappings []Mapping
	// Plain leaves the shim's sections out.
	Plain   bool
	Meta    []Pair
	Objects []Object
	Giants  []Giant
	Small   []Stack // of HEAPWIRE_OBJECTS; raw
	// SmallSampleBytes is their sampling interval. Default: SampleBytes.
	SmallSampleBytes int64
	Functions        []Function
}

// Stack is one @ entry with its figures as printed.
type Stack struct {
	Frames                   []uint64 // leaf first; return addresses and tokens
	Objects, Bytes           uint64
	AccumObjects, AccumBytes uint64
	Thread                   int // whose stack it is, for the per-thread line
}

// Mapping is a line of MAPPED_LIBRARIES.
type Mapping struct {
	Start, End, Offset uint64
	Perms              string
	File               string
}

// Object is a line of HEAPWIRE_BUILD_IDS.
type Object struct {
	Start, End uint64
	BuildID    string // "-" for none
	File       string
}

// Giant is a line of HEAPWIRE_GIANT.
type Giant struct {
	Time   int64 // nanoseconds since 1970
	TID    int64
	Bytes  uint64
	Call   string
	Thread string
	Frames []uint64 // leaf first; return addresses and tokens
}

// Function is a line of HEAPWIRE_FRAMES.
type Function struct {
	ID   uint32
	Name string
	File string
	Line int
}

// Pair is a line of HEAPWIRE_META.
type Pair struct{ Key, Value string }

// Token is the address of a Python frame (docs/spool.md).
func Token(id uint32, line int) uint64 { return 0x5079<<48 | uint64(id)<<22 | uint64(line) }

// Tokens that stand for no function.
const (
	FramesLeftOut uint64 = 0x5079ffffffffffff
	WalkStopped   uint64 = 0x5079fffffffffffe
)

// Values are objects and bytes.
type Values struct{ Objects, Bytes float64 }

// Estimate is what the stack stands for after scaling: live, and ever allocated.
func (s Stack) Estimate(sampleBytes int64) (inuse, alloc Values) {
	return estimate(s.Objects, s.Bytes, sampleBytes), estimate(s.AccumObjects, s.AccumBytes, sampleBytes)
}

func estimate(objects, bytes uint64, sampleBytes int64) Values {
	if objects == 0 {
		return Values{}
	}
	f := 1.0
	if sampleBytes > 1 {
		f = 1 / (1 - math.Exp(-float64(bytes)/float64(objects)/float64(sampleBytes)))
	}
	return Values{float64(objects) * f, float64(bytes) * f}
}

// Estimate sums the stacks' estimates.
func (d *Dump) Estimate() (inuse, alloc Values) {
	for _, s := range d.Stacks {
		i, a := s.Estimate(d.SampleBytes)
		inuse.Objects += i.Objects
		inuse.Bytes += i.Bytes
		alloc.Objects += a.Objects
		alloc.Bytes += a.Bytes
	}
	return inuse, alloc
}

// EstimateSmall sums the estimates of small Python objects, which Estimate leaves out: no header counts them.
func (d *Dump) EstimateSmall() Values {
	var v Values
	for _, s := range d.Small {
		i, _ := s.Estimate(d.smallSampleBytes())
		v.Objects += i.Objects
		v.Bytes += i.Bytes
	}
	return v
}

func (d *Dump) smallSampleBytes() int64 {
	if d.SmallSampleBytes == 0 {
		return d.SampleBytes
	}
	return d.SmallSampleBytes
}

// printed is what a header shows for totals in unbiased mode: the formula, inverted.
func printed(v Values, sampleBytes int64) (uint64, uint64) {
	if v.Objects == 0 {
		return 0, 0
	}
	p := 1.0
	if sampleBytes > 1 {
		p = 1 - math.Exp(-v.Bytes/v.Objects/float64(sampleBytes))
	}
	return uint64(math.Round(v.Objects * p)), uint64(math.Round(v.Bytes * p))
}

// Write writes the dump.
func (d *Dump) Write(w io.Writer) error {
	out := new(bytes.Buffer)
	fmt.Fprintf(out, "heap_v2/%d\n", d.SampleBytes)
	var h Stack
	if d.Raw {
		for _, s := range d.Stacks {
			h.Objects += s.Objects
			h.Bytes += s.Bytes
			h.AccumObjects += s.AccumObjects
			h.AccumBytes += s.AccumBytes
		}
	} else {
		inuse, alloc := d.Estimate()
		h.Objects, h.Bytes = printed(inuse, d.SampleBytes)
		h.AccumObjects, h.AccumBytes = printed(alloc, d.SampleBytes)
	}
	counts(out, "t*", h, "")
	for i, name := range d.Threads {
		counts(out, fmt.Sprintf("t%d", i), h, name)
	}
	for _, s := range d.Stacks {
		record(out, s)
		counts(out, fmt.Sprintf("t%d", s.Thread), s, "")
	}
	out.WriteString("\nMAPPED_LIBRARIES:\n")
	for _, m := range d.Mappings {
		l := fmt.Sprintf("%x-%x %s %08x fe:00 %d", m.Start, m.End, m.Perms, m.Offset, len(m.File))
		if m.File != "" {
			l = fmt.Sprintf("%-72s %s", l, m.File)
		}
		fmt.Fprintf(out, "%s\n", l)
	}
	if !d.Plain {
		d.sections(out)
	}
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("writing the dump: %w", err)
	}
	return nil
}

var escape = strings.NewReplacer("\\", `\\`, "\t", `\t`, "\n", `\n`, "\r", `\r`)

func (d *Dump) sections(out *bytes.Buffer) {
	out.WriteString("\nHEAPWIRE_META: 1\n")
	for _, p := range d.Meta {
		fmt.Fprintf(out, "%s=%s\n", p.Key, p.Value)
	}
	out.WriteString("\nHEAPWIRE_BUILD_IDS: 1\n")
	for _, o := range d.Objects {
		fmt.Fprintf(out, "%x-%x %s %s\n", o.Start, o.End, o.BuildID, o.File)
	}
	if len(d.Giants) > 0 {
		out.WriteString("\nHEAPWIRE_GIANT: 1\n")
	}
	for _, g := range d.Giants {
		fmt.Fprintf(out, "%d\t%d\t%d\t%s\t%s\t", g.Time, g.TID, g.Bytes, g.Call, escape.Replace(g.Thread))
		for i, f := range g.Frames {
			if i > 0 {
				out.WriteByte(' ')
			}
			fmt.Fprintf(out, "0x%x", f)
		}
		out.WriteByte('\n')
	}
	if len(d.Small) > 0 {
		fmt.Fprintf(out, "\nHEAPWIRE_OBJECTS: 1\nheap_v2/%d\n", d.smallSampleBytes())
	}
	for _, s := range d.Small {
		record(out, s)
	}
	out.WriteString("\nHEAPWIRE_FRAMES: 1\n")
	for _, f := range d.Functions {
		fmt.Fprintf(out, "%d\t%s\t%s\t%d\n", f.ID, escape.Replace(f.Name), escape.Replace(f.File), f.Line)
	}
	out.WriteString("\n")
}

// record writes a stack and its line for all threads.
func record(out *bytes.Buffer, s Stack) {
	line := append(make([]byte, 0, 20*len(s.Frames)+2), '@')
	for _, f := range s.Frames {
		line = append(line, " 0x"...)
		line = appendHex(line, f)
	}
	out.Write(append(line, '\n'))
	counts(out, "t*", s, "")
}

func counts(out *bytes.Buffer, who string, s Stack, name string) {
	if name != "" {
		name = " " + name
	}
	fmt.Fprintf(out, "  %s: %d: %d [%d: %d]%s\n", who, s.Objects, s.Bytes, s.AccumObjects, s.AccumBytes, name)
}

func appendHex(b []byte, n uint64) []byte {
	const digits = "0123456789abcdef"
	shift := 60
	for shift > 0 && n>>shift == 0 {
		shift -= 4
	}
	for ; shift >= 0; shift -= 4 {
		b = append(b, digits[n>>shift&15])
	}
	return b
}

// Options says what [Generate] makes.
type Options struct {
	Stacks      int
	Depth       int   // frames of the deepest stacks; the others have at least half of them. Default 40
	PythonDepth int   // how many of them, at the root end, are Python's. Default 0
	Functions   int   // distinct functions of each kind. Default 2000
	SampleBytes int64 // default 512 KiB
	Accum       bool  // with cumulative figures
	Raw, Plain  bool
	Threads     int // default 1
	Small       int // records of small Python objects, every other one with a stack that malloc has too
	Giants      int // giant requests, each of another size, with the stacks of the first samples
	Seed        uint64
}

// linesPerFunction is from how many lines a Python function calls something that allocates.
const linesPerFunction = 3

// Addresses that Generate uses.
const (
	libStart, libSize = 0x7f0000000000, 0x4000000
	allocatorStart    = 0x7f8000000000
)

// Generate makes a dump with distinct stacks, the same one for the same options.
func Generate(o Options) *Dump {
	if o.Depth == 0 {
		o.Depth = 40
	}
	if o.Functions == 0 {
		o.Functions = 2000
	}
	if o.SampleBytes == 0 {
		o.SampleBytes = 512 << 10
	}
	if o.Threads == 0 {
		o.Threads = 1
	}
	r := rand.New(rand.NewPCG(o.Seed, 1))
	d := &Dump{SampleBytes: o.SampleBytes, Raw: o.Raw, Plain: o.Plain}
	for i := range o.Threads {
		d.Threads = append(d.Threads, fmt.Sprintf("worker %d", i))
	}
	libs := 8
	for i := range libs {
		start := uint64(libStart) + uint64(i)*libSize
		file := fmt.Sprintf("/opt/app/lib/libpart%d.so", i)
		d.Mappings = append(d.Mappings,
			Mapping{start, start + libSize/4, 0, "r--p", file},
			Mapping{start + libSize/4, start + libSize, libSize / 4, "r-xp", file})
		d.Objects = append(d.Objects, Object{start, start + libSize, fmt.Sprintf("%040x", i+1), file})
	}
	d.Mappings = append(d.Mappings,
		Mapping{allocatorStart, allocatorStart + 0x100000, 0, "r-xp", "/usr/lib/libjemalloc.so.2"},
		Mapping{0x7ffc00000000, 0x7ffc00021000, 0, "rw-p", "[stack]"})

	native := make([]uint64, o.Functions)
	for i := range native {
		native[i] = libStart + uint64(i%libs)*libSize + libSize/4 + r.Uint64N(libSize*3/4-16) + 1
	}
	if o.PythonDepth > 0 {
		for i := range o.Functions {
			d.Functions = append(d.Functions, Function{uint32(i + 1), fmt.Sprintf("Class%d.method%d", i/7, i),
				fmt.Sprintf("/opt/app/src/module%d.py", i/25), 1 + i%25*40})
		}
	}
	seen := map[string]bool{}
	arena := make([]uint64, 0, o.Stacks*o.Depth)
	key := make([]byte, 0, 8*o.Depth)
	for len(d.Stacks) < o.Stacks {
		depth := o.Depth/2 + r.IntN(o.Depth-o.Depth/2+1)
		from := len(arena)
		arena = append(arena, allocatorStart+0x2631, allocatorStart+0x2d22)
		for len(arena)-from < depth-min(o.PythonDepth, depth/2) {
			arena = append(arena, native[hot(r, len(native))])
		}
		for len(arena)-from < depth {
			f := 1 + hot(r, o.Functions)
			arena = append(arena, Token(uint32(f), 1+(f-1)%25*40+r.IntN(linesPerFunction)))
		}
		key = key[:0]
		for _, f := range arena[from:] {
			for k := range 8 {
				key = append(key, byte(f>>(8*k)))
			}
		}
		if seen[string(key)] {
			arena = arena[:from]
			continue
		}
		seen[string(key)] = true
		size := uint64(16) << r.IntN(16)
		s := Stack{Frames: arena[from:len(arena):len(arena)], Objects: 1 + r.Uint64N(20), Thread: r.IntN(o.Threads)}
		s.Bytes = s.Objects * size
		if o.Accum {
			s.AccumObjects = s.Objects + r.Uint64N(100)
			s.AccumBytes = s.AccumObjects * size
			if r.IntN(3) == 0 {
				s.Objects, s.Bytes = 0, 0
			}
		}
		d.Stacks = append(d.Stacks, s)
	}
	for i := range o.Small {
		frames := d.Stacks[i%len(d.Stacks)].Frames
		if i%2 == 1 {
			frames = frames[1:]
		}
		s := Stack{Frames: frames, Objects: 1 + r.Uint64N(20)}
		s.Bytes = s.Objects * 16 * (1 + r.Uint64N(32))
		d.Small = append(d.Small, s)
	}
	accum := "0"
	if o.Accum {
		accum = "1"
	}
	d.Meta = []Pair{
		{"seq", "7"}, {"reason", "interval"},
		{"time_unix_nano", fmt.Sprint(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())},
		{"interval_ns", "60000000000"}, {"sample_bytes", fmt.Sprint(o.SampleBytes)},
		{"prof_accum", accum}, {"unbiased", "1"}, {"step", "1200"},
		{"allocated", "123456789"}, {"rss", "223456789"}, {"samples", "4711"},
		{"python", "3.12.1"}, {"python_frames", "on"},
	}
	for i := range o.Giants {
		d.Giants = append(d.Giants, Giant{
			Time: time.Date(2026, 3, 1, 11, 59, 59, i, time.UTC).UnixNano(), TID: int64(4242 + i), Bytes: 1<<40 + uint64(i),
			Call: "malloc", Thread: fmt.Sprintf("worker %d", i%o.Threads), Frames: d.Stacks[i%len(d.Stacks)].Frames,
		})
	}
	if o.Giants > 0 {
		d.Meta = append(d.Meta, Pair{"trigger", fmt.Sprintf("request of %d", d.Giants[o.Giants-1].Bytes)},
			Pair{"giant_requests", fmt.Sprint(o.Giants)}, Pair{"giant_lost", "0"})
		d.Meta[1].Value = "giant"
	}
	return d
}

// hot picks one of n, the first ones far more often: a program's stacks share most of their frames.
func hot(r *rand.Rand, n int) int {
	u := r.Float64()
	return int(float64(n) * u * u * u)
}

// Write makes a dump and writes it.
func Write(w io.Writer, o Options) error { return Generate(o).Write(w) }
