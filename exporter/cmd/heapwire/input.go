// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/pprof/profile"
	"github.com/klauspost/compress/zstd"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/jemalloc"
	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/convert/torchmem"
)

// maxProfileBytes caps a pprof profile, which is read whole.
const maxProfileBytes = 2 << 30

// input is one file read.
type input struct {
	path     string
	sidecar  *torchmem.Sidecar // of a snapshot, nil without one
	profile  *profile.Profile
	meta     jemalloc.Meta // of a dump
	mappings []jemalloc.Mapping
	giants   []string // huge requests that it tells of
	snapshot *torchmem.Snapshot
	warnings []string
}

// show makes a snapshot's profile: of one view and device, "" for the most telling and for all.
func (in *input) show(view, device string) error {
	if view == "" {
		view = in.snapshot.DefaultView(device)
	}
	p, err := in.snapshot.View(view, device)
	if err != nil {
		return fmt.Errorf("%s: %w", in.path, err)
	}
	in.profile = p
	return nil
}

func (in *input) time() time.Time {
	if in.snapshot != nil {
		return in.snapshot.Time
	}
	if in.meta.Time.IsZero() && in.profile.TimeNanos != 0 {
		return time.Unix(0, in.profile.TimeNanos)
	}
	return in.meta.Time
}

func readInput(path string, stdin io.Reader, symbols *symbol.Resolver, progress *progress) (*input, error) {
	name, r, modified := path, stdin, time.Time{}
	var (
		side *torchmem.Sidecar
		odd  error
	)
	if path == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, errors.Unwrap(err))
		}
		defer f.Close()
		info, err := f.Stat()
		if err != nil {
			return nil, fmt.Errorf("reading %s: %w", path, errors.Unwrap(err))
		}
		if info.IsDir() {
			return nil, fmt.Errorf("reading %s: is a folder; name the files in it", path)
		}
		watched := progress.watch(path, f, info.Size())
		defer watched.Close()
		r, modified = watched, info.ModTime()
		if torchmem.IsFileName(path, true) {
			side, odd = readSidecar(torchmem.SidecarName(path))
		}
	}
	in, err := parseInput(name, r, modified, symbols, side)
	if err != nil {
		return nil, err
	}
	in.path = path
	if odd != nil {
		in.warnings = append(in.warnings, odd.Error())
	}
	return in, nil
}

// readSidecar reads the JSON beside a snapshot, if there is one. What could be read of it comes beside an error.
func readSidecar(path string) (*torchmem.Sidecar, error) {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return nil, nil
	}
	fail := func(side *torchmem.Sidecar, err error) (*torchmem.Sidecar, error) {
		return side, fmt.Errorf("%s: %s", path, strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(nil, errors.Unwrap(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, torchmem.MaxSidecar+1))
	if err != nil {
		return fail(nil, err)
	}
	side, err := torchmem.ParseSidecar(text)
	if err != nil {
		return fail(side, err)
	}
	return side, nil
}

var (
	gzipMagic = []byte{0x1f, 0x8b}             // RFC 1952, 2.3.1
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd} // RFC 8878, 3.1.1
	heapMagic = []byte("heap_v2/")
	zipMagic  = []byte("PK\x03\x04")
)

// parseInput tells the format by the content. Offsets in errors count the bytes after decompression.
func parseInput(name string, r io.Reader, modified time.Time, symbols *symbol.Resolver, side *torchmem.Sidecar) (*input, error) {
	plain, closer, err := decompress(name, r)
	if err != nil {
		return nil, err
	}
	defer closer()
	head, err := plain.Peek(len(heapMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%s: byte 0: %w", name, err)
	}
	switch {
	case len(head) == 0:
		return nil, fmt.Errorf("%s: byte 0: the file is empty", name)
	case bytes.HasPrefix(head, heapMagic):
		heap, err := convert.HeapDump(plain, convert.Options{Name: name, Symbols: symbols})
		if err != nil {
			return nil, err
		}
		in := &input{profile: heap.Profile, meta: heap.Meta, warnings: heap.Warnings}
		in.mappings = heap.Mappings
		for _, g := range heap.Giants {
			in.giants = append(in.giants, g.Line())
		}
		return in, nil
	case head[0] == 0x80 && len(head) > 1 && head[1] >= 2 && head[1] <= 5:
		snapshot, err := torchmem.Read(plain, torchmem.Options{Name: name, Time: modified, Kind: torchmem.ParseFileName(name).Kind, Sidecar: side})
		if err != nil {
			return nil, err
		}
		return &input{snapshot: snapshot, sidecar: side, warnings: snapshot.Report.Warnings()}, nil
	case bytes.HasPrefix(head, zipMagic):
		return nil, fmt.Errorf("%s: byte 0: a zip archive; memory snapshots are plain pickles (torch.cuda.memory._dump_snapshot)", name)
	}
	limited := &countingReader{r: io.LimitReader(plain, maxProfileBytes+1)}
	raw, err := io.ReadAll(limited)
	if err != nil {
		return nil, fmt.Errorf("%s: byte %d: %w", name, limited.n, err)
	}
	if len(raw) > maxProfileBytes {
		return nil, fmt.Errorf("%s: byte %d: a profile larger than %s is not read", name, maxProfileBytes, bytesText(maxProfileBytes))
	}
	p, err := profile.ParseUncompressed(raw)
	if err == nil {
		err = p.CheckValid()
	}
	if err == nil && len(p.SampleType) == 0 {
		err = errors.New("no sample type")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: byte 0: neither a jemalloc heap dump (heap_v2) nor a pprof profile: %w", name, err)
	}
	return &input{profile: p}, nil
}

func decompress(name string, r io.Reader) (*bufio.Reader, func(), error) {
	const buffer = 256 << 10
	plain := bufio.NewReaderSize(r, buffer)
	nothing := func() {}
	head, err := plain.Peek(len(zstdMagic))
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, nothing, fmt.Errorf("%s: byte 0: %w", name, err)
	}
	switch {
	case bytes.HasPrefix(head, gzipMagic):
		z, err := gzip.NewReader(plain)
		if err != nil {
			return nil, nothing, fmt.Errorf("%s: byte 0: %w", name, err)
		}
		return bufio.NewReaderSize(z, buffer), func() { z.Close() }, nil
	case bytes.HasPrefix(head, zstdMagic):
		z, err := zstd.NewReader(plain, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(256<<20))
		if err != nil {
			return nil, nothing, fmt.Errorf("%s: byte 0: %w", name, err)
		}
		return bufio.NewReaderSize(z, buffer), z.Close, nil
	}
	return plain, nothing, nil
}

type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// merge adds profiles up. Those that lack a sample type of another lose it for all.
func merge(inputs []*input) (*profile.Profile, error) {
	if len(inputs) == 1 {
		return inputs[0].profile, nil
	}
	profiles := make([]*profile.Profile, len(inputs))
	for i, in := range inputs {
		profiles[i] = in.profile
	}
	if err := profile.CompatibilizeSampleTypes(profiles); err != nil {
		return nil, fmt.Errorf("merging %d inputs: %w", len(inputs), err)
	}
	merged, err := profile.Merge(profiles)
	if err != nil {
		return nil, fmt.Errorf("merging %d inputs: %w", len(inputs), err)
	}
	return merged, nil
}

// writeFile writes a result whole or not at all, readable by its owner only.
func writeFile(path string, data []byte) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("writing %s: %w", path, err)
		}
	}()
	// What is there and no regular file, such as a pipe or /dev/null, is written to, not replaced.
	if info, statErr := os.Stat(path); statErr == nil && !info.Mode().IsRegular() {
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		_, err = f.Write(data)
		return errors.Join(err, f.Close())
	}
	// CreateTemp makes files with mode 0600.
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*.tmp")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}
