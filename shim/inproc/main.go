// SPDX-License-Identifier: Apache-2.0

package main

/*
#include <stdlib.h>
void inproc_claimed(int fd, int held);
void inproc_say(void *say, char *line);
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"github.com/heapwire/heapwire/convert"
	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/exporter"
	"github.com/heapwire/heapwire/exporter/sinks"
	"github.com/heapwire/heapwire/exporter/spool"
)

// version is set when linking.
var version = "devel"

// memoryLimit makes the collector work rather than the heap grow. What the runtime needs beside comes on top.
const memoryLimit = 16 << 20

var pipeline *exporter.Pipeline

const (
	started = iota
	noSink
	failed
)

//export goStart
func goStart(path *C.char, say unsafe.Pointer) C.int {
	log := slog.New(&speaker{say})
	code, err := start(C.GoString(path), log)
	if err != nil {
		log.Warn(err.Error())
	}
	return C.int(code)
}

// keepLastWords has a runtime that gives up write into the spool: standard error leads nowhere in the clock's table of descriptors
// (shim/src/descriptors.c).
func keepLastWords(folder string, log *slog.Logger) error {
	name := filepath.Join(folder, spool.LastWords)
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New(name + ": want a file")
	}
	if info.Size() > 0 {
		log.Warn("the exporter inside a process has crashed, and the process with it; its last words are in " + name + ", to be removed by hand")
	}
	return debug.SetCrashOutput(f, debug.CrashOptions{})
}

func start(path string, log *slog.Logger) (int, error) {
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(min(runtime.GOMAXPROCS(0), 2))
	set, err := sinks.FromEnv(os.Getenv, version, log)
	if err != nil {
		log.Warn(err.Error())
	}
	to := append(set.Profiles, set.Figures...)
	if len(to) == 0 {
		return noSink, nil
	}
	if err := keepLastWords(path, log); err != nil && !errors.Is(err, os.ErrPermission) {
		log.Warn("where the exporter's last words would go: " + err.Error())
	}
	place, err := spool.Open(path, spool.Options{Logger: log, Claimed: func(fd int, held bool) {
		n := C.int(0)
		if held {
			n = 1
		}
		C.inproc_claimed(C.int(fd), n)
	}})
	if err != nil {
		return failed, err
	}
	symbols := &symbol.Resolver{}
	p, err := exporter.New(exporter.Config{
		Spool: place, Sinks: to, Events: set.Events, NoSummary: true, Logger: log,
		Convert: func(r io.Reader, name string) (*convert.Heap, error) {
			return convert.HeapDump(r, convert.Options{Name: name, Symbols: symbols})
		},
	})
	if err != nil {
		return failed, err
	}
	p.Start()
	pipeline = p
	return started, nil
}

//export goStop
func goStop(milliseconds C.int) {
	if pipeline == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(milliseconds)*time.Millisecond)
	defer cancel()
	// What is left is in the spool, for the next start.
	_ = pipeline.Shutdown(ctx)
}

// speaker hands warnings to who started us.
type speaker struct{ say unsafe.Pointer }

func (s *speaker) Enabled(_ context.Context, level slog.Level) bool {
	return s.say != nil && level >= slog.LevelWarn
}

func (s *speaker) Handle(_ context.Context, r slog.Record) error {
	if s.say == nil {
		return errors.New("nobody to speak to")
	}
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += fmt.Sprintf(", %s %v", a.Key, a.Value)
		return true
	})
	line := C.CString(strings.ReplaceAll(text, "\n", "; "))
	defer C.free(unsafe.Pointer(line))
	C.inproc_say(s.say, line)
	return nil
}

func (s *speaker) WithAttrs([]slog.Attr) slog.Handler { return s }
func (s *speaker) WithGroup(string) slog.Handler      { return s }

func main() {}
