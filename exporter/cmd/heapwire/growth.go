// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/heapwire/heapwire/convert/compare"
)

// kinds are those of verdicts, for --fail-on.
var kinds = []string{
	string(compare.Leak), string(compare.Undecided), string(compare.Plateau), string(compare.Spike), string(compare.Retention), string(compare.Fragmentation),
	string(compare.Rounding), string(compare.OutsideMalloc), string(compare.CopyOnWrite), string(compare.Giant),
}

type growthFlags struct {
	format string
	rows   int
	root   string
	failOn []string
}

func newGrowth() *cobra.Command {
	var f growthFlags
	cmd := &cobra.Command{
		Use:   "growth FOLDER|FILE...",
		Short: "Rank stacks by how steadily they grow, and say what that means",
		Long: `Growth reads the dumps of one process or of many: a spool, the folder that "heapwire run --out" or the file sink wrote,
a process's folder in either, or files. It ranks stacks by steady growth, the part of the growth that goes on: caches that come
and go, and what was loaded once, have little of it. Processes are added up by stack; those that differ from the others are named.

From three dumps on there are verdicts: leak, growth, plateau, spike; from one on allocator_retention, fragmentation, rounding,
outside_malloc, giant_allocation; in forked processes copy_on_write. Each with the numbers that led to it and what usually helps.

Columns of the table:
  grew        from the first dump to the last, with the standard error that sampling leaves
  slope       of a line through all dumps, with its limits at 95 %
  sure        how sure it is that it grew, given the sampling error
  since       the first dump that has the stack
  holds       bytes at the last dump, and their share of all that is live
  shape       ` + strings.Join(shapes, ", ") + `

Exit status 3 with --fail-on, if there is a verdict of one of its kinds.`,
		Example: "  heapwire growth heapwire-out",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no input")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.format, "format", "text", "text or json")
	flags.IntVar(&f.rows, "rows", 10, "most lines of the table; 0 means all, what is within the error too")
	flags.StringSliceVar(&f.failOn, "fail-on", nil, "exit with status 3 on a verdict of these `KINDS`: "+strings.Join(kinds, ", "))
	flags.StringVar(&f.root, "symbols-root", "", "look for the programs and libraries of a dump below `DIR`")
	return cmd
}

var shapes = []string{
	string(compare.Growing), string(compare.Grew), string(compare.LevelsOff), string(compare.Jump), string(compare.UpAndDown), string(compare.Unsure), string(compare.TooFew), string(compare.OneDump),
}

func (f *growthFlags) run(cmd *cobra.Command, paths []string) error {
	if f.format != "text" && f.format != "json" {
		return usagef("format %q: want text or json", f.format)
	}
	if f.rows < 0 {
		return usagef("--rows %d: want 0 or more", f.rows)
	}
	for _, k := range f.failOn {
		if !slices.Contains(kinds, k) {
			return usagef("--fail-on %q: want %s", k, strings.Join(kinds, ", "))
		}
	}
	r := growthReport{names: map[uint64]compare.Named{}, rows: f.rows}
	var err error
	if r.dumps, err = gather(cmd, paths, f.root, r.add); err != nil {
		return err
	}
	r.judge()
	var b bytes.Buffer
	if f.format == "json" {
		err = r.json(&b)
	} else {
		err = r.text(&b)
	}
	if err != nil {
		return err
	}
	if _, err := cmd.OutOrStdout().Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing to standard output: %w", err)
	}
	for _, v := range r.verdicts {
		if slices.Contains(f.failOn, string(v.Kind)) {
			return &statusError{status: exitOver, err: fmt.Errorf("%s: %s", v.Kind, oneLine(v.Says))}
		}
	}
	return nil
}

// growthReport is what a call has found.
type growthReport struct {
	dumps     int
	rows      int
	names     map[uint64]compare.Named
	processes []*seriesOf
	merged    []compare.Merged
	verdicts  []compare.Verdict
}

// seriesOf are the dumps of a process.
type seriesOf struct {
	compare.Process
	judged []compare.Verdict // of the last snapshot
}

func (r *growthReport) add(f *found) error {
	i := slices.IndexFunc(r.processes, func(p *seriesOf) bool { return p.Name == f.process })
	if i < 0 {
		i = len(r.processes)
		r.processes = append(r.processes, &seriesOf{Process: compare.Process{Name: f.process, Rank: f.rank, Series: &compare.Series{}, Names: r.names}})
	}
	p := r.processes[i]
	s := f.snapshotOf()
	for key, named := range s.Names {
		if _, ok := r.names[key]; !ok {
			r.names[key] = named
		}
	}
	p.Series.Add(s)
	p.Giants = append(p.Giants, f.giants...)
	p.judged = f.judged
	return nil
}

func (r *growthReport) judge() {
	parts := map[string][]compare.Growth{}
	for _, p := range r.processes {
		p.Growth = p.Series.Growth(r.names)
		parts[p.Name] = p.Growth
		r.verdicts = append(r.verdicts, p.Verdicts()...)
		for _, v := range p.judged {
			v.Process, v.Rank = p.Name, p.Rank
			r.verdicts = append(r.verdicts, v)
		}
	}
	compare.Order(r.verdicts)
	r.merged = compare.Merge(parts)
	r.merged = slices.DeleteFunc(r.merged, func(m compare.Merged) bool { return m.Bytes() <= 0 })
}

// rank is what a process is called beside its name.
func rankText(rank string) string {
	if rank == "" {
		return ""
	}
	return " (rank " + rank + ")"
}

func (r *growthReport) text(w io.Writer) error {
	var before, after int64
	var sigma float64
	for _, p := range r.processes {
		t := p.Series.Total()
		before, after = before+t.First, after+t.Last
		sigma = math.Hypot(sigma, t.Sigma)
	}
	fmt.Fprintf(w, "%s of %s: live %s (sampling error ±%s)\n",
		count(r.dumps, "dump", "dumps"), count(len(r.processes), "process", "processes"), course(before, after), bytesText(int64(sigma)))
	const most = 16
	for i, p := range r.processes {
		if i == most {
			fmt.Fprintf(w, "  and %d more\n", len(r.processes)-i)
			break
		}
		t := p.Series.Total()
		fmt.Fprintf(w, "  %s%s: %s%s, %s\n", oneLine(p.Name), rankText(p.Rank), count(p.Series.Dumps(), "dump", "dumps"), lasting(p.Series.Duration()), course(t.First, t.Last))
	}
	fmt.Fprintln(w)
	writeVerdicts(w, r.verdicts, len(r.processes) > 1)
	if len(r.merged) == 0 {
		fmt.Fprintln(w, "no stack grew")
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "grew\t±\tslope\tsure\tsince\tholds\tshare\tshape\t  line\n")
	shown, left := 0, 0
	for _, m := range r.merged {
		// What is within the error, or a hundredth of all, says nothing beside what is not.
		minor := m.Shape == compare.Unsure || m.Bytes() < after/100
		if shown > 0 && minor && r.rows > 0 || shown == r.rows && r.rows > 0 {
			left++
			continue
		}
		shown++
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t  %s\n", "+"+bytesText(m.Bytes()), bytesText(int64(m.Sigma)), m.Slope(), compare.Percent(m.Confidence),
			m.FirstSeen+1, bytesText(m.Last), percent(m.Last, after), m.Shape, oneLine(m.String()))
		if len(r.processes) > 1 {
			fmt.Fprintf(tw, "\t\t\t\t\t\t\t\t    %s\n", oneLine(r.who(m)))
		}
	}
	if left > 0 {
		fmt.Fprintf(tw, "\t\t\t\t\t\t\t\t  and %d smaller ones, or within the error\n", left)
	}
	return tw.Flush()
}

// course is how much was live first and last; of a single dump nothing is known before it.
func course(first, last int64) string {
	if first == 0 {
		return bytesText(last)
	}
	return bytesText(first) + " → " + bytesText(last)
}

// who says which processes a row is of.
func (r *growthReport) who(m compare.Merged) string {
	const most = 4
	of := func(parts []compare.Part) string {
		var text []string
		for i, p := range parts {
			if i == most {
				text = append(text, fmt.Sprintf("%d more", len(parts)-i))
				break
			}
			text = append(text, fmt.Sprintf("%s%s +%s", p.Process, rankText(r.rankOf(p.Process)), bytesText(p.Bytes())))
		}
		return strings.Join(text, ", ")
	}
	if len(m.Differs) > 0 {
		return fmt.Sprintf("unlike the other %d: %s", len(r.processes)-len(m.Differs), of(m.Differs))
	}
	if len(m.Parts) == len(r.processes) {
		return fmt.Sprintf("in all %d processes alike", len(m.Parts))
	}
	return of(m.Parts)
}

func (r *growthReport) rankOf(process string) string {
	for _, p := range r.processes {
		if p.Name == process {
			return p.Rank
		}
	}
	return ""
}

func lasting(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	if d > time.Minute {
		return " in " + d.Round(time.Second).String()
	}
	return " in " + d.Round(10*time.Millisecond).String()
}

// writeVerdicts tells verdicts, and what helps, once.
func writeVerdicts(w io.Writer, verdicts []compare.Verdict, who bool) {
	helped := map[string]bool{}
	for _, v := range verdicts {
		text := fmt.Sprintf("%s: %s", v.Kind, v.Says)
		if who {
			text += fmt.Sprintf(" [%s%s]", v.Process, rankText(v.Rank))
		}
		fmt.Fprintln(w, oneLine(text))
		if callers := v.Stack.String(); v.Key != 0 && strings.Contains(callers, " < ") {
			fmt.Fprintln(w, oneLine("    at "+callers))
		}
		if !helped[v.Helps] {
			fmt.Fprintln(w, oneLine("    "+v.Helps))
		}
		helped[v.Helps] = true
	}
	if len(verdicts) > 0 {
		fmt.Fprintln(w)
	}
}

// json writes what text writes, all of it. Bytes, seconds.
func (r *growthReport) json(w io.Writer) error {
	type processJSON struct {
		Name    string  `json:"process"`
		Rank    string  `json:"rank,omitempty"`
		Dumps   int     `json:"dumps"`
		Seconds float64 `json:"seconds"`
		First   int64   `json:"first"`
		Last    int64   `json:"last"`
		Error   float64 `json:"error"`
	}
	type partJSON struct {
		Process string `json:"process"`
		Grew    int64  `json:"grew"`
	}
	type rowJSON struct {
		Grew           int64         `json:"grew"`
		Error          float64       `json:"error"`
		Steady         int64         `json:"steady"`
		PerSecond      float64       `json:"per_second"`
		PerSecondError float64       `json:"per_second_error"`
		PerDump        float64       `json:"per_dump"`
		PerStep        float64       `json:"per_step,omitempty"`
		Confidence     float64       `json:"confidence"`
		FirstSeen      int           `json:"first_seen"`
		Holds          int64         `json:"holds"`
		Objects        int64         `json:"objects"`
		Shape          compare.Shape `json:"shape"`
		Stack          []string      `json:"stack"`
		Processes      []partJSON    `json:"processes"`
		Differs        []string      `json:"differs,omitempty"`
	}
	out := struct {
		Dumps     int           `json:"dumps"`
		Processes []processJSON `json:"processes"`
		Verdicts  []verdictJSON `json:"verdicts"`
		Growth    []rowJSON     `json:"growth"`
	}{Dumps: r.dumps, Verdicts: verdictsJSON(r.verdicts), Growth: []rowJSON{}}
	for _, p := range r.processes {
		t := p.Series.Total()
		out.Processes = append(out.Processes, processJSON{p.Name, p.Rank, p.Series.Dumps(), p.Series.Duration().Seconds(), t.First, t.Last, t.Sigma})
	}
	for i, m := range r.merged {
		if i == r.rows && r.rows > 0 {
			break
		}
		row := rowJSON{
			Grew: m.Bytes(), Error: m.Sigma, Steady: m.Steady, PerSecond: m.PerSecond, PerSecondError: m.PerSecondError, PerDump: m.PerDump, PerStep: m.PerStep,
			Confidence: m.Confidence, FirstSeen: m.FirstSeen + 1, Holds: m.Last, Objects: m.Objects, Shape: m.Shape, Stack: framesText(m.Named),
		}
		for _, p := range m.Parts {
			row.Processes = append(row.Processes, partJSON{p.Process, p.Bytes()})
		}
		for _, p := range m.Differs {
			row.Differs = append(row.Differs, p.Process)
		}
		out.Growth = append(out.Growth, row)
	}
	return writeJSON(w, out)
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// framesText reads "function file:line", the line charged first, then its callers.
func framesText(n compare.Named) []string {
	out := []string{}
	for _, f := range n.Frames {
		out = append(out, place(f.Function, f.File, f.Line))
	}
	return out
}

type verdictJSON struct {
	Kind       compare.Kind       `json:"kind"`
	Process    string             `json:"process,omitempty"`
	Rank       string             `json:"rank,omitempty"`
	Bytes      int64              `json:"bytes"`
	Says       string             `json:"says"`
	Helps      string             `json:"helps"`
	Confidence float64            `json:"confidence"`
	Numbers    map[string]float64 `json:"numbers,omitempty"`
	Stack      []string           `json:"stack,omitempty"`
}

func verdictsJSON(all []compare.Verdict) []verdictJSON {
	out := []verdictJSON{}
	for _, v := range all {
		j := verdictJSON{Kind: v.Kind, Process: v.Process, Rank: v.Rank, Bytes: v.Bytes, Says: v.Says, Helps: v.Helps, Confidence: v.Confidence, Stack: framesText(v.Stack)}
		for _, n := range v.Numbers {
			if j.Numbers == nil {
				j.Numbers = map[string]float64{}
			}
			j.Numbers[n.Key] = n.Value
		}
		out = append(out, j)
	}
	return out
}
