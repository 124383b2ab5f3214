// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"

	convert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/otlp"
	"github.com/heapwire/heapwire/exporter/sink"
)

// TopRows is how many lines the table has.
const TopRows = 50

// Config is what to write where.
type Config struct {
	// Dir is the folder; it is made when the first profile comes.
	Dir string

	// JSON also writes each profile as an OTLP/JSON request, <stem>.otlp.json.
	JSON bool

	// NoHTML and NoTop leave out the flame graph and the table.
	NoHTML, NoTop bool

	// Version is heapwire's own, for the scope of OTLP/JSON.
	Version string
}

// Sink writes files. Profiles carry the figures of their dump as comments ([Notes]). All files are readable by their owner only, and appear whole.
//
//	<Dir>/<process>/<seq>.<reason>.pb.gz       every dump
//	<Dir>/<process>/<seq>.<reason>.otlp.json   on request
//	<Dir>/<process>/<seq>.<reason>.html        the newest dump
//	<Dir>/<process>/top.txt                    the newest dump
//
// A profile of a device's memory has device and view after the reason, 000004.oom.cuda_0.peak.pb.gz, and in its table's name,
// top.cuda_0.peak.txt.
type Sink struct {
	cfg Config

	mu     sync.Mutex
	newest map[string]uint64 // process and suffix → seq
}

var _ sink.Sink = (*Sink)(nil)

// New makes a sink. It writes nothing yet.
func New(cfg Config) (*Sink, error) {
	if cfg.Dir == "" {
		return nil, errors.New("file: no folder to write to")
	}
	return &Sink{cfg: cfg, newest: map[string]uint64{}}, nil
}

// Name is "file".
func (s *Sink) Name() string { return "file" }

// Close does nothing: each Export leaves its files whole.
func (s *Sink) Close(context.Context) error { return nil }

// Export writes one item's files. A full disk may have room later, so that is no permanent error.
func (s *Sink) Export(ctx context.Context, it *sink.Item) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !validName(it.Process) || !validName(it.Base) {
		return sink.Permanent(fmt.Errorf("file: %q/%q is no name for a file", it.Process, it.Base))
	}
	dir := filepath.Join(s.cfg.Dir, it.Process)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("file: making the folder of a process: %w", err)
	}
	stem := filepath.Join(dir, it.Base+suffix(it))

	var gz bytes.Buffer
	own, err := private(it.Profile)
	if err == nil {
		annotate(own, it)
		err = own.Write(&gz)
	}
	if err != nil {
		return sink.Permanent(fmt.Errorf("file: encoding %s: %w", stem, err))
	}
	if err := write(stem+".pb.gz", gz.Bytes()); err != nil {
		return err
	}
	if s.cfg.JSON {
		b, err := s.json(it)
		if err != nil {
			return sink.Permanent(fmt.Errorf("file: encoding %s: %w", stem, err))
		}
		if err := write(stem+".otlp.json", b); err != nil {
			return err
		}
	}

	key := it.Process + "/" + suffix(it)
	if last, ok := s.newest[key]; ok && it.Seq < last {
		return nil // a late delivery of an older dump
	}
	s.newest[key] = it.Seq
	if !s.cfg.NoTop {
		if err := write(filepath.Join(dir, "top"+suffix(it)+".txt"), []byte(Top(it, TopRows))); err != nil {
			return err
		}
	}
	if !s.cfg.NoHTML {
		b, err := HTML(it.Profile, Title(it))
		if err != nil {
			return sink.Permanent(fmt.Errorf("file: %s: %w", stem, err))
		}
		if err := write(stem+".html", b); err != nil {
			return err
		}
		return s.dropOlder(dir, it)
	}
	return nil
}

func (s *Sink) json(it *sink.Item) ([]byte, error) {
	pd, err := convert.Build(it.Profile, otlp.Options(it, s.cfg.Version))
	if err != nil {
		return nil, err
	}
	return convert.MarshalJSON(pd)
}

// suffix tells profiles of one dump apart; live host memory, the common case, has none. A device's name tells its kind.
func suffix(it *sink.Item) string {
	kind := it.Kind
	if strings.HasPrefix(it.Device, kind+":") {
		kind = ""
	}
	var b strings.Builder
	for _, part := range []struct{ value, usual string }{{kind, "host"}, {it.Device, ""}, {it.View, "live"}} {
		if part.value != "" && part.value != part.usual {
			b.WriteString("." + unsafe.ReplaceAllString(part.value, "_"))
		}
	}
	return b.String()
}

var unsafe = regexp.MustCompile(`[^A-Za-z0-9_-]`)

func validName(s string) bool {
	return s != "" && s != "." && s != ".." && !strings.ContainsAny(s, "/\x00") && filepath.IsLocal(s)
}

// dropOlder removes the flame graphs of earlier dumps of the same kind.
func (s *Sink) dropOlder(dir string, it *sink.Item) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("file: looking for older flame graphs: %w", err)
	}
	own := regexp.MustCompile(`^(\d+)\.[a-z][a-z0-9_-]*` + regexp.QuoteMeta(suffix(it)) + `\.html$`)
	for _, e := range entries {
		m := own.FindStringSubmatch(e.Name())
		if m == nil {
			continue
		}
		if seq, err := strconv.ParseUint(m[1], 10, 64); err != nil || seq >= it.Seq {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("file: removing an older flame graph: %w", err)
		}
	}
	return nil
}

// write puts a file in place at once: readers never see half of it, and a crash leaves the one before.
func write(name string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".*.tmp") // mode 0600
	if err != nil {
		return fmt.Errorf("file: writing %s: %w", name, err)
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
			err = fmt.Errorf("file: writing %s: %w", name, err)
		}
	}()
	if _, err = f.Write(data); err != nil {
		f.Close()
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

// Title says in a line what a profile shows.
func Title(it *sink.Item) string {
	parts := []string{it.Identity.ServiceName, it.Process, it.Base}
	for _, v := range []string{it.Kind, it.Device, it.View} {
		if v != "" {
			parts = append(parts, v)
		}
	}
	if parts[0] == "" {
		parts = parts[1:]
	}
	if !it.Time.IsZero() {
		parts = append(parts, it.Time.UTC().Format("2006-01-02 15:04:05 UTC"))
	}
	return strings.Join(parts, " · ")
}

// Top is the table of the lines that hold most, in the first sample type of bytes.
func Top(it *sink.Item, rows int) string {
	sampleType := mainSampleType(it.Profile)
	var total int64
	for i, st := range it.Profile.SampleType {
		if st.Type == sampleType {
			for _, s := range it.Profile.Sample {
				total += s.Value[i]
			}
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s: %d bytes in all\n\n", Title(it), sampleType, total)
	fmt.Fprintf(&b, "%15s %6s %15s %6s  %s\n", "flat bytes", "flat%", "cum bytes", "cum%", "line")
	for _, r := range stack.Top(it.Profile, sampleType, rows) {
		where := r.File
		if r.Line > 0 {
			where += ":" + strconv.FormatInt(r.Line, 10)
		}
		fmt.Fprintf(&b, "%15d %5.1f%% %15d %5.1f%%  %s %s\n", r.Flat, percent(r.Flat, total), r.Cum, percent(r.Cum, total), r.Function, where)
	}
	return b.String()
}

func percent(v, total int64) float64 {
	if total == 0 {
		return 0
	}
	return 100 * float64(v) / float64(total)
}
