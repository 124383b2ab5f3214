// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/pprof/profile"
	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/convert/compare"
	"github.com/heapwire/heapwire/convert/stack"
	"github.com/heapwire/heapwire/exporter/pyroscope"
)

var diffFormats = []string{"text", "json", "folded", "html"}

type diffFlags struct {
	format   string
	rows     int
	last     int
	failOver sizeValue
	root     string
	timeout  time.Duration
}

func newDiff() *cobra.Command {
	var f diffFlags
	cmd := &cobra.Command{
		Use:   "diff BASE HEAD",
		Short: "Compare the live heap of two deployments, line by line, in bytes",
		Long: `Diff says which lines hold more in HEAD than in BASE. A side is a file, a folder with all dumps in it (a spool, the folder
of "heapwire run --out", a process's folder in either), or what a Pyroscope server has:

  pyroscope://HOST:PORT/?service_name=S&service_version=V&from=T&to=T     (pyroscope+https for TLS)

Every parameter but from and to is a label; memory_kind is host and view is live if they are not named. Times are RFC 3339,
seconds since 1970, now, or now-1h. PYROSCOPE_BASIC_AUTH_USER and its kin are sent along.

Bytes are those of the mean snapshot of a side, however many it has. Lines are matched by function and file: a line that an
edit above has moved is the same line, and so is one in another virtual environment, Python or image path. What does not stand out
of the sampling error (by three standard errors of the difference) is not told as a change.

Formats:
  text    the lines that changed most
  json    all lines
  folded  one line a stack, "root;...;leaf base head", for difffolded.pl and its kin
  html    one self-contained page with a flame graph of both sides: red grew, green shrank

Exit status 3 if a line, or all of the heap, grew by more than --fail-over and by more than the sampling error.`,
		Example: "  heapwire diff --fail-over 50MiB baseline/ heapwire-out/",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 2 {
				return usagef("want two sides, BASE and HEAD, not %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0], args[1]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.format, "format", "text", strings.Join(diffFormats, ", "))
	flags.IntVar(&f.rows, "rows", 20, "lines of the table; 0 means all")
	flags.IntVar(&f.last, "last", 0, "compare the last `N` dumps of each process only (0: all); not with Pyroscope")
	flags.Var(&f.failOver, "fail-over", "exit with status 3 if something grew by more than this, such as 50MiB")
	flags.StringVar(&f.root, "symbols-root", "", "look for the programs and libraries of a dump below `DIR`")
	flags.DurationVar(&f.timeout, "timeout", time.Minute, "longest time for a server's answers")
	return cmd
}

func (f *diffFlags) run(cmd *cobra.Command, base, head string) error {
	if !slices.Contains(diffFormats, f.format) {
		return usagef("format %q: want %s", f.format, strings.Join(diffFormats, ", "))
	}
	if f.rows < 0 || f.last < 0 {
		return usagef("--rows %d, --last %d: want 0 or more", f.rows, f.last)
	}
	var sides [2]*compare.Side
	for i, from := range []string{base, head} {
		side, err := f.side(cmd, from)
		if err != nil {
			return err
		}
		sides[i] = side
	}
	c := compare.Diff(sides[0], sides[1])
	var b bytes.Buffer
	var err error
	switch f.format {
	case "json":
		err = diffJSON(&b, c)
	case "html":
		var page []byte
		page, err = diffHTML(c)
		b.Write(page)
	case "folded":
		for _, s := range c.Stacks() {
			var names []string
			for _, f := range slices.Backward(s.Frames) {
				names = append(names, stack.Separate(f.String()))
			}
			fmt.Fprintf(&b, "%s %.0f %.0f\n", strings.Join(names, ";"), s.Base, s.Head)
		}
	default:
		err = f.text(&b, c)
	}
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	if !cmd.Flags().Changed("fail-over") {
		return nil
	}
	if what := over(c, int64(f.failOver)); what != "" {
		return &statusError{status: exitOver, err: fmt.Errorf("%s, more than the %s of --fail-over", what, bytesText(int64(f.failOver)))}
	}
	return nil
}

// over tells what grew by more than the limit.
func over(c *compare.Comparison, limit int64) string {
	if d := c.Delta(); d > float64(limit) && d > 3*c.Sigma {
		return "the live heap grew by " + bytesText(int64(d))
	}
	for _, r := range c.Rows {
		if r.Change != compare.Same && r.Delta() > float64(limit) {
			at := r.Frame()
			return fmt.Sprintf("%s grew by %s", oneLine(place(at.Function, at.File, at.Line)), bytesText(int64(r.Delta())))
		}
	}
	return ""
}

func (f *diffFlags) side(cmd *cobra.Command, from string) (*compare.Side, error) {
	s := &compare.Side{Name: from}
	if strings.HasPrefix(from, "pyroscope:") || strings.HasPrefix(from, "pyroscope+https:") {
		if f.last > 0 {
			return nil, usagef("--last is for files and folders: a server is asked by from and to")
		}
		return s, f.ask(s, from)
	}
	var err error
	if f.last == 0 {
		_, err = gather(cmd, []string{from}, f.root, func(d *found) error {
			s.Add(d.profile, 1)
			return nil
		})
		return s, err
	}
	latest := map[string][]*profile.Profile{}
	_, err = gather(cmd, []string{from}, f.root, func(d *found) error {
		kept := append(latest[d.process], d.profile)
		latest[d.process] = kept[max(len(kept)-f.last, 0):]
		return nil
	})
	for _, profiles := range latest {
		for _, p := range profiles {
			s.Add(p, 1)
		}
	}
	return s, err
}

func (f *diffFlags) ask(s *compare.Side, from string) error {
	address, q, err := pyroscope.Selector(from, time.Now())
	if err != nil {
		return usagef("%s: %v", redacted(from), err)
	}
	s.Name = redacted(from)
	getenv := func(key string) string {
		if key == "PYROSCOPE_SERVER_ADDRESS" {
			return address
		}
		return os.Getenv(key)
	}
	cfg, _, err := pyroscope.ConfigFromEnv(getenv)
	if err != nil {
		return err
	}
	cfg.Version = currentVersion()
	cfg.Logger = slog.New(slog.DiscardHandler)
	ctx, cancel := context.WithTimeout(context.Background(), f.timeout)
	defer cancel()
	found, err := pyroscope.Select(ctx, cfg, q)
	if err != nil {
		return err
	}
	s.Add(found.Profile, found.Snapshots)
	return nil
}

// redacted is a selector without what stands before the host: it may be a password.
func redacted(selector string) string {
	scheme, rest, ok := strings.Cut(selector, "://")
	if !ok {
		return scheme
	}
	host, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndexByte(host, '@'); at >= 0 {
		host = host[at+1:]
	}
	return scheme + "://" + host + "/" + path
}

func (f *diffFlags) text(w io.Writer, c *compare.Comparison) error {
	side := func(what string, s *compare.Side) {
		fmt.Fprintf(w, "%s  %s: %s live, the mean of %s\n", what, oneLine(s.Name), bytesText(int64(s.Live())), count(s.Snapshots, "snapshot", "snapshots"))
	}
	side("base", c.Base)
	side("head", c.Head)
	fmt.Fprintf(w, "%s (sampling error ±%s)\n\n", signed(c.Delta()), bytesText(int64(c.Sigma)))
	changed := 0
	within := 0.0
	for _, r := range c.Rows {
		if r.Change == compare.Same {
			within += r.Delta()
			continue
		}
		changed++
	}
	if changed == 0 {
		fmt.Fprintf(w, "nothing changed beyond the sampling error (%d lines on both sides)\n", len(c.Rows))
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "change\t±\tbase\thead\t\t  line\n")
	for i, r := range c.Rows {
		if r.Change == compare.Same {
			break
		}
		if i == f.rows && f.rows > 0 {
			fmt.Fprintf(tw, "\t\t\t\t\t  and %d smaller changes\n", changed-i)
			break
		}
		at := r.Frame()
		text := place(at.Function, at.File, at.Line)
		if r.Line > 0 && r.BaseLine > 0 && r.Line != r.BaseLine {
			text += fmt.Sprintf(" (line %d in the base)", r.BaseLine)
		}
		for k, caller := range r.Callers {
			if k == 2 {
				break
			}
			if caller.Python == r.Python {
				text += " < " + caller.String()
			}
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\t  %s\n", signed(r.Delta()), bytesText(int64(r.Sigma)), bytesText(int64(r.Base)), bytesText(int64(r.Head)), r.Change, oneLine(text))
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	if same := len(c.Rows) - changed; same > 0 {
		fmt.Fprintf(w, "\n%s within the sampling error: %s together\n", count(same, "line is", "lines are"), signed(within))
	}
	var renamed []string
	for from, to := range c.Renamed {
		renamed = append(renamed, from+" → "+to)
	}
	slices.Sort(renamed)
	for _, text := range renamed {
		fmt.Fprintln(w, oneLine("the same file: "+text))
	}
	return nil
}

func signed(v float64) string {
	if v < 0 {
		return bytesText(int64(v))
	}
	return "+" + bytesText(int64(v))
}

// diffJSON writes all lines, those that changed most first. Sizes are bytes of the mean snapshot.
func diffJSON(w io.Writer, c *compare.Comparison) error {
	type sideJSON struct {
		Name      string  `json:"name"`
		Snapshots int     `json:"snapshots"`
		Live      float64 `json:"live"`
	}
	type rowJSON struct {
		Change   compare.Change `json:"change"`
		Function string         `json:"function"`
		File     string         `json:"file,omitempty"`
		Line     int64          `json:"line,omitempty"`
		BaseLine int64          `json:"base_line,omitempty"`
		Delta    float64        `json:"delta"`
		Error    float64        `json:"error"`
		Base     float64        `json:"base"`
		Head     float64        `json:"head"`
	}
	out := struct {
		Base    sideJSON          `json:"base"`
		Head    sideJSON          `json:"head"`
		Delta   float64           `json:"delta"`
		Error   float64           `json:"error"`
		Renamed map[string]string `json:"renamed,omitempty"`
		Lines   []rowJSON         `json:"lines"`
	}{
		sideJSON{c.Base.Name, c.Base.Snapshots, math.Round(c.Base.Live())}, sideJSON{c.Head.Name, c.Head.Snapshots, math.Round(c.Head.Live())},
		math.Round(c.Delta()), math.Round(c.Sigma), c.Renamed, []rowJSON{},
	}
	for _, r := range c.Rows {
		out.Lines = append(out.Lines, rowJSON{r.Change, r.Function, r.File, r.Line, r.BaseLine, math.Round(r.Delta()), math.Round(r.Sigma), math.Round(r.Base), math.Round(r.Head)})
	}
	return writeJSON(w, out)
}
