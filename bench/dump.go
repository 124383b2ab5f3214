package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
)

// Shape of the made-up dumps: that of a Python job under the shim.
const (
	nativeFrames    = 8
	pythonFrames    = 32
	pythonFunctions = 2000
	nativeCalls     = 3000
	libraries       = 40
)

// dump writes a heap_v2 dump with our sections and so many distinct stacks; the same one each time.
func dump(stacks int) []byte {
	random := rand.New(rand.NewPCG(1, uint64(stacks)))
	const base, size = 0x7f0000000000, 1 << 21
	address := func(i int) uint64 { return base + uint64(i%libraries)*2*size + 16 + uint64(i)*37%(size-16) }

	var body bytes.Buffer
	var objects, total uint64
	for i := range stacks {
		body.WriteByte('@')
		for range nativeFrames {
			fmt.Fprintf(&body, " %#x", address(random.IntN(nativeCalls)))
		}
		// Neighbouring stacks share their root, as they do in a program; the leaf makes them distinct.
		root := i / 16
		for depth := range pythonFrames {
			function := (root*31 + (pythonFrames-depth)*7) % pythonFunctions
			line := 10 + (root+depth)%200
			if depth == 0 {
				function, line = i%pythonFunctions, 10+i/pythonFunctions
			}
			fmt.Fprintf(&body, " %#x", uint64(0x5079)<<48|uint64(function+1)<<22|uint64(line))
		}
		n := 1 + random.Uint64N(50)
		bytes := n * (512 + random.Uint64N(1<<16))
		objects, total = objects+n, total+bytes
		fmt.Fprintf(&body, "\n  t*: %d: %d [0: 0]\n  t3: %d: %d [0: 0]\n", n, bytes, n, bytes)
	}

	var out bytes.Buffer
	fmt.Fprintf(&out, "heap_v2/524288\n  t*: %d: %d [0: 0]\n  t3: %d: %d [0: 0]\n", objects, total, objects, total)
	out.Write(body.Bytes())
	out.WriteString("\nMAPPED_LIBRARIES:\n")
	for i := range libraries {
		start := uint64(base) + uint64(i)*2*size
		fmt.Fprintf(&out, "%x-%x r-xp 00000000 fe:00 %d                    /opt/lib/libpart%d.so\n", start, start+size, 1000+i, i)
	}
	out.WriteString("\nHEAPWIRE_META: 1\nseq=1\nreason=interval\nsample_bytes=524288\n\nHEAPWIRE_BUILD_IDS: 1\n")
	for i := range libraries {
		start := uint64(base) + uint64(i)*2*size
		fmt.Fprintf(&out, "%x-%x %040x /opt/lib/libpart%d.so\n", start, start+size, i+1, i)
	}
	out.WriteString("\nHEAPWIRE_FRAMES: 1\n")
	for i := range pythonFunctions {
		fmt.Fprintf(&out, "%d\tpackage.module_%d.Class.method_%d\t/opt/app/package/module_%d.py\t%d\n", i+1, i/40, i, i/40, 10*i%400+1)
	}
	out.WriteString("\n")
	return out.Bytes()
}
