// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/pprof/profile"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/heapwire/heapwire/convert/jemalloc"
	otlpconvert "github.com/heapwire/heapwire/convert/otlp"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/convert/symbol"
	"github.com/heapwire/heapwire/convert/torchmem"
	"github.com/heapwire/heapwire/exporter/file"
	"github.com/heapwire/heapwire/exporter/sink"
)

var formats = []string{"pprof", "otlp", "otlp-json", "folded", "html", "text"}

type convertFlags struct {
	out, format, sampleType string
	view, device            string
	rows                    int
	root                    string
}

func newConvert() *cobra.Command {
	var f convertFlags
	cmd := &cobra.Command{
		Use:   "convert INPUT...",
		Short: "Turn heap dumps into profiles, flame graphs and tables",
		Long: `Convert reads heap dumps (heap_v2), PyTorch and torch_npu memory snapshots (pickles; no code of theirs is run) and
pprof profiles, also compressed (.gz, .zst), and writes one result. What an input is, is told by its content; - is standard
input. Several inputs are added up.

Formats:
  pprof      gzip-compressed profile.proto, as go tool pprof and Pyroscope read it
  otlp       OTLP ExportProfilesServiceRequest, protobuf
  otlp-json  the same as JSON
  folded     one line a stack, "root;...;leaf value"
  html       one self-contained page with a flame graph
  text       table of the lines that hold most: flat is what a line allocated, cum also what it called; of a snapshot a page
             with totals, what lives, the peak, errors, and what looks like a leak or fragmentation

A snapshot's .json beside it, as the Python package writes it, is read too: limit, step, rank, the stack of the error.

Views of a snapshot: ` + strings.Join(torchmem.Views, ", ") + `. Without --view the most telling: oom, then leak, then live.

The result goes to standard output, warnings to standard error. A file named by -o is written whole or not at all, with
mode 0600.`,
		Example: "  heapwire convert --format text heapwire-out/*/*.pb.gz",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no input")
			}
			if n := len(args) - len(slices.DeleteFunc(slices.Clone(args), func(a string) bool { return a == "-" })); n > 1 {
				return usagef("standard input is named %d times", n)
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVarP(&f.out, "output", "o", "-", "write the result to `FILE`")
	flags.StringVar(&f.format, "format", "pprof", strings.Join(formats, ", "))
	flags.StringVar(&f.sampleType, "sample-type", "", "what folded and text show (default inuse_space)")
	flags.StringVar(&f.view, "view", "", "`VIEW` of a snapshot")
	flags.StringVar(&f.device, "device", "", "one `DEVICE` of a snapshot, such as cuda:0 (default all)")
	flags.IntVar(&f.rows, "rows", 40, "lines of the table; 0 means all")
	flags.StringVar(&f.root, "symbols-root", "", "look for the programs and libraries of a dump below `DIR`")
	return cmd
}

func (f *convertFlags) run(cmd *cobra.Command, paths []string) error {
	if !slices.Contains(formats, f.format) {
		return usagef("format %q: want %s", f.format, strings.Join(formats, ", "))
	}
	if f.view != "" && !slices.Contains(torchmem.Views, f.view) {
		return usagef("view %q: want %s", f.view, strings.Join(torchmem.Views, ", "))
	}
	if f.rows < 0 {
		return usagef("--rows %d: want 0 or more", f.rows)
	}
	binary := f.format == "pprof" || f.format == "otlp"
	if out, ok := cmd.OutOrStdout().(*os.File); ok && binary && f.out == "-" && term.IsTerminal(int(out.Fd())) {
		return usagef("format %s is not for terminals: name a file with -o, or another --format", f.format)
	}
	symbols := &symbol.Resolver{Root: f.root}
	var inputs []*input
	for _, path := range paths {
		in, err := readInput(path, cmd.InOrStdin(), symbols, newProgress(cmd.ErrOrStderr()))
		if err != nil {
			return err
		}
		for _, w := range in.warnings {
			fmt.Fprintf(cmd.ErrOrStderr(), "heapwire: warning: %s\n", oneLine(w))
		}
		switch {
		case in.snapshot == nil && (f.view != "" || f.device != ""):
			return usagef("--view and --device are for memory snapshots: %s is none", path)
		case in.snapshot != nil && f.format == "text" && len(paths) == 1 && f.view == "":
			var b bytes.Buffer
			if err := in.snapshot.WriteText(&b, f.device, f.rows); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			return f.write(cmd, b.Bytes())
		case in.snapshot != nil:
			if err := in.show(f.view, f.device); err != nil {
				return err
			}
		}
		inputs = append(inputs, in)
	}
	merged, err := merge(inputs)
	if err != nil {
		return err
	}
	result, err := f.render(merged, inputs)
	if err != nil {
		return err
	}
	return f.write(cmd, result)
}

func (f *convertFlags) write(cmd *cobra.Command, result []byte) error {
	if f.out == "-" {
		if _, err := cmd.OutOrStdout().Write(result); err != nil {
			return fmt.Errorf("writing to standard output: %w", err)
		}
		return nil
	}
	return writeFile(f.out, result)
}

func (f *convertFlags) render(p *profile.Profile, inputs []*input) ([]byte, error) {
	var b bytes.Buffer
	switch f.format {
	case "pprof":
		if err := p.Write(&b); err != nil {
			return nil, fmt.Errorf("encoding profile: %w", err)
		}
		return b.Bytes(), nil
	case "otlp", "otlp-json":
		opts := otlpconvert.Options{ScopeVersion: currentVersion(), Time: inputs[0].time(), Duration: inputs[0].meta.Interval}
		if id, ok := commonIdentity(inputs); ok {
			opts.Resource = id.Attributes()
		}
		if f.format == "otlp" {
			return otlpconvert.Encode(p, opts, otlpconvert.Reference)
		}
		pd, err := otlpconvert.Build(p, opts)
		if err != nil {
			return nil, err
		}
		return otlpconvert.MarshalJSON(pd)
	case "html":
		return file.HTML(p, title(inputs))
	}
	sampleType, err := f.chosen(p)
	if err != nil {
		return nil, err
	}
	if f.format == "folded" {
		err = stack.Folded(&b, p, sampleType)
	} else {
		err = table(&b, p, sampleType, f.rows)
		for _, in := range inputs {
			if err == nil {
				err = jemalloc.WriteAccount(&b, in.meta, in.mappings)
			}
			for _, giant := range in.giants {
				fmt.Fprintln(&b, giant)
			}
		}
	}
	return b.Bytes(), err
}

func title(inputs []*input) string {
	name := filepath.Base(inputs[0].path)
	if inputs[0].path == "-" {
		name = "standard input"
	}
	if len(inputs) > 1 {
		name += fmt.Sprintf(" and %d more", len(inputs)-1)
	}
	return name
}

func (f *convertFlags) chosen(p *profile.Profile) (string, error) {
	var have []string
	for _, t := range p.SampleType {
		have = append(have, t.Type)
	}
	wanted := f.sampleType
	if wanted == "" {
		wanted = "inuse_space"
		if !slices.Contains(have, wanted) {
			wanted = have[len(have)-1]
		}
	}
	if !slices.Contains(have, wanted) {
		return "", usagef("sample type %q: the profile has %s", wanted, strings.Join(have, ", "))
	}
	return wanted, nil
}

// commonIdentity reads the process.json beside the inputs, if they all lie in one process folder of a spool.
func commonIdentity(inputs []*input) (sink.Identity, bool) {
	dir := filepath.Dir(inputs[0].path)
	for _, in := range inputs {
		if in.path == "-" || filepath.Dir(in.path) != dir {
			return sink.Identity{}, false
		}
	}
	return identityIn(dir)
}

func identityIn(dir string) (sink.Identity, bool) {
	info, err := os.Lstat(filepath.Join(dir, "process.json"))
	if err != nil || !info.Mode().IsRegular() {
		return sink.Identity{}, false
	}
	f, err := os.Open(filepath.Join(dir, "process.json"))
	if err != nil {
		return sink.Identity{}, false
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, sink.MaxProcessJSON+1))
	if err != nil {
		return sink.Identity{}, false
	}
	read, err := sink.ParseProcessJSON(text)
	return read.Identity(), err == nil
}

// table writes the lines that hold most, largest first.
func table(w io.Writer, p *profile.Profile, sampleType string, rows int) error {
	i := slices.IndexFunc(p.SampleType, func(t *profile.ValueType) bool { return t.Type == sampleType })
	if i < 0 {
		return errors.New("making a table: no such sample type")
	}
	unit := p.SampleType[i].Unit
	var sum int64
	for _, s := range p.Sample {
		sum += s.Value[i]
	}
	text := func(v int64) string {
		if unit == "bytes" {
			return bytesText(v)
		}
		return fmt.Sprint(v)
	}
	fmt.Fprintf(w, "%s: %s in %d stacks\n", sampleType, text(sum), len(p.Sample))
	top := stack.Top(p, sampleType, rows)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "flat\tflat%\tcum\tcum%\tobjects\t  line\n")
	for _, r := range top {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t  %s\n", text(r.Flat), percent(r.Flat, sum), text(r.Cum), percent(r.Cum, sum), r.FlatObjects,
			oneLine(place(r.Function, r.File, r.Line)))
	}
	return tw.Flush()
}

// place names a line of the program: function, then file and line as an editor takes them.
func place(function, path string, line int64) string {
	switch {
	case path == "" || strings.HasPrefix(function, stack.BaseName(path)+"!"):
		return function
	case line > 0:
		return fmt.Sprintf("%s %s:%d", function, path, line)
	}
	return function + " " + path
}

func percent(v, of int64) string {
	if of == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*float64(v)/float64(of))
}

func bytesText(n int64) string { return stack.Size(n) }
