// SPDX-License-Identifier: Apache-2.0

package torchmem

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/convert/stack"
)

// Fragmentation is how much of what the allocator has the program cannot use.
type Fragmentation struct {
	// Share is inactive / reserved at the dump, 0 to 1.
	Share float64
	// Empty is the inactive part in segments without live blocks, which torch.cuda.empty_cache gives back. Pinned is the
	// rest: live blocks keep their segments.
	Empty, Pinned int64
	// High tells that it is worth doing something about.
	High bool
}

// highShare is the share of inactive memory from which on advice is given; highBytes keeps small programs out of it.
const (
	highShare = 0.20
	highBytes = 64 << 20
)

// Fragmentation judges a device's state at the dump.
func (d *Device) Fragmentation() Fragmentation {
	var f Fragmentation
	for _, r := range d.views[holdersView] {
		if r.note == noteEmptySegments {
			f.Empty += r.bytes
		}
	}
	f.Pinned = d.Inactive - f.Empty
	if d.Reserved > 0 {
		f.Share = float64(d.Inactive) / float64(d.Reserved)
		f.High = f.Share > highShare && d.Inactive > highBytes && float64(f.Pinned)/float64(d.Reserved) > highShare
	}
	return f
}

// Verdict says in a sentence what the window says about leaks.
func (l Leak) Verdict() string {
	steps := fmt.Sprintf("%d steps", l.Steps)
	if l.Steps == 1 {
		steps = "1 step"
	}
	source := map[string]string{StepsFromMarks: "by step=N in the metadata", StepsFromAnnotations: "by Optimizer.step", StepsFromDeciles: "tenths of the window"}[l.StepsFrom]
	switch {
	case !l.Judged && l.StepsFrom == StepsFromDeciles:
		return "not judged: the window shows no work that repeats (few allocations, or few of them freed)"
	case !l.Judged:
		return fmt.Sprintf("not judged: %s in the window (%s), which is too few to see what recurs", steps, source)
	case len(l.Stacks) == 0:
		return fmt.Sprintf("none: no stack has survivors from several steps (%s, %s)", steps, source)
	}
	s := l.Stacks[0]
	return fmt.Sprintf("%s in %d objects of %d stacks recur (%s, %s); most at %s: %s in %d objects from %d steps, %s a step",
		size(l.Bytes), l.Objects, len(l.Stacks), steps, source, innermost(s.Stack), size(s.Bytes), s.Objects, s.Steps, size(s.PerStep))
}

// innermost names a stack by the line a Python programmer can change.
func innermost(frames []Frame) string {
	for _, f := range frames {
		if f.Python {
			return f.String()
		}
	}
	if len(frames) > 0 {
		return frames[0].String()
	}
	return NoPythonFrames
}

// size is a number of bytes as a person reads it.
func size(n int64) string { return stack.Size(n) }

// WriteText writes a page that a person reads: what is held, by which lines, at the dump, at the peak and at the last
// out-of-memory error, and the verdicts on leaks and fragmentation with their numbers. rows is how many lines a table has.
func (s *Snapshot) WriteText(w io.Writer, device string, rows int) error {
	devices, err := s.pick(device)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", s.Report.Name)
	if !s.Start.IsZero() {
		fmt.Fprintf(&b, "events from %s to %s (%s)\n", s.Start.Format(time.RFC3339), s.Time.Format(time.RFC3339), s.Time.Sub(s.Start).Round(time.Millisecond))
	}
	if side := s.opts.Sidecar; side != nil {
		b.WriteString(oneLine(side.line()) + "\n")
	}
	if len(devices) == 0 {
		b.WriteString("no segments and no events\n")
	}
	for _, d := range devices {
		if err := s.deviceText(&b, d, rows); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the page of %s: %w", s.Report.Name, err)
	}
	return nil
}

func (s *Snapshot) deviceText(b *strings.Builder, d *Device, rows int) error {
	fmt.Fprintf(b, "\n%s: %s requested in %d blocks, %s reserved in %d segments\n", d.Name, size(d.Requested), d.LiveBlocks, size(d.Reserved), d.Segments)
	if d.Workspaces > 0 {
		fmt.Fprintf(b, "  workspaces outside the allocator: %s in %d\n", size(d.Workspace), d.Workspaces)
	}
	if d.Pending > 0 {
		fmt.Fprintf(b, "  freed, waiting for another stream: %s\n", size(d.Pending))
	}
	if d.Events > 0 {
		fmt.Fprintf(b, "  window: %d events, %d allocations of %s, %d frees, %s live before it\n", d.Events, d.AllocObjects, size(d.AllocBytes), d.FreeObjects, size(d.Baseline))
		if d.WindowTruncated {
			fmt.Fprintf(b, "  the window begins late: %d blocks of %s were allocated before it and freed in it\n", d.StaleFrees, size(d.StaleBytes))
		}
	}
	table := func(title string, p *profile.Profile) {
		_, total := totals(p)
		if total == 0 {
			return
		}
		fmt.Fprintf(b, "\n  %s: %s\n", title, size(total))
		for _, r := range flat(p, rows) {
			fmt.Fprintf(b, "    %10s  %5.1f%%  %7d  %s\n", size(r.Flat), 100*float64(r.Flat)/float64(total), r.FlatObjects, oneLine(lineOf(r)))
		}
	}
	for _, o := range d.OOMs {
		when := ""
		if !o.Time.IsZero() {
			when = " at " + o.Time.Format("15:04:05.000")
		}
		event := fmt.Sprintf("event %d", o.Index)
		if o.Index < 0 {
			event = "not among the events; what follows is the state at the dump"
		}
		fmt.Fprintf(b, "\n  out of memory%s (%s): %s asked for by %s\n", when, event, size(o.Requested), oneLine(innermost(o.Stack)))
		fmt.Fprintf(b, "    live %s in %d blocks, reserved %s, inactive %s, largest hole %s, free on the device %s\n",
			size(o.Live), o.LiveObjects, size(o.Reserved), size(o.Inactive), size(o.LargestHole), size(o.Free))
		switch {
		case o.Limit > 0:
			fmt.Fprintf(b, "    the process may use %s of the device's %s\n", size(o.Limit), size(o.Total))
		case o.Total > 0:
			fmt.Fprintf(b, "    the device has %s\n", size(o.Total))
		}
		if o.Unwound {
			fmt.Fprintf(b, "    the dump was taken after unwinding: %s were left of it\n", size(o.LiveAtDump))
		}
	}
	if n := d.OOMCount - int64(len(d.OOMs)); n > 0 {
		fmt.Fprintf(b, "\n  %d more out-of-memory errors between the first and the last are not shown\n", n)
	}
	for _, v := range []struct{ view, title string }{
		{"oom", "at the last out-of-memory error, the request included"},
		{"live", "live at the dump"},
		{"peak", "at the peak"},
	} {
		if v.view == "peak" && d.Events == 0 {
			continue
		}
		p, err := s.View(v.view, d.Name)
		if err != nil {
			return err
		}
		table(v.title, p)
	}
	if d.Events > 0 {
		fmt.Fprintf(b, "\n  leak: %s\n", oneLine(d.Leak.Verdict()))
		for i, l := range d.Leak.Stacks {
			if i == rows {
				break
			}
			fmt.Fprintf(b, "    %10s  %7d objects  %d steps  %s\n", size(l.Bytes), l.Objects, l.Steps, oneLine(innermost(l.Stack)))
		}
		if d.Leak.OptimizerBytes > 0 {
			fmt.Fprintf(b, "    the optimizer's own state, made in the window: %s\n", size(d.Leak.OptimizerBytes))
		}
	}
	f := d.Fragmentation()
	verdict := "low"
	if f.High {
		verdict = "high"
	}
	if d.Reserved > 0 {
		fmt.Fprintf(b, "\n  fragmentation: %s. %s of %s reserved (%.1f%%) is inactive: %s in segments without live blocks, %s pinned by live blocks; largest hole %s; %s lost to rounding\n",
			verdict, size(d.Inactive), size(d.Reserved), 100*f.Share, size(f.Empty), size(f.Pinned), size(d.LargestHole), size(d.Rounding))
		if g := d.LastGrowth; g != nil && g.Reserved > 0 {
			fmt.Fprintf(b, "    when the last segment was added (event %d, %s): %s reserved, %s live, %s unused\n", g.Index, size(g.Size), size(g.Reserved), size(g.Live), size(g.Unused))
		}
		if f.High && s.Settings.Known && !s.Settings.ExpandableSegments {
			b.WriteString("    expandable_segments is off: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n")
		}
	}
	return nil
}

// line says when and where a snapshot was taken, as far as the sidecar knows.
func (s *Sidecar) line() string {
	parts := []string{"taken: " + cmp.Or(s.Reason, "for an unknown reason")}
	if s.Name != "" {
		parts[0] += fmt.Sprintf(" (%s)", s.Name)
	}
	if s.Window != "" {
		parts = append(parts, s.Window)
	} else if s.Step >= 0 {
		parts = append(parts, fmt.Sprintf("step %d", s.Step))
	}
	if s.Rank >= 0 {
		parts = append(parts, fmt.Sprintf("rank %d", s.Rank))
	}
	if s.Skipped > 0 {
		parts = append(parts, fmt.Sprintf("%d earlier errors without a snapshot of their own", s.Skipped))
	}
	if s.TorchVersion != "" {
		parts = append(parts, "PyTorch "+s.TorchVersion)
	}
	return strings.Join(parts, ", ")
}

func totals(p *profile.Profile) (objects, bytes int64) {
	for _, s := range p.Sample {
		objects += s.Value[0]
		bytes += s.Value[1]
	}
	return objects, bytes
}

// flat are the lines that hold most by themselves.
func flat(p *profile.Profile, n int) []stack.Row {
	rows := slices.DeleteFunc(stack.Top(p, "", 0), func(r stack.Row) bool { return r.Flat == 0 })
	slices.SortStableFunc(rows, func(a, b stack.Row) int { return cmp.Compare(b.Flat, a.Flat) })
	if n > 0 && n < len(rows) {
		rows = rows[:n]
	}
	return rows
}

// lineOf names a line with its whole file, as an editor takes it.
func lineOf(r stack.Row) string {
	switch {
	case r.File == "":
		return r.Function
	case r.Line > 0:
		return fmt.Sprintf("%s %s:%d", r.Function, r.File, r.Line)
	}
	return r.Function + " " + r.File
}

// oneLine keeps control characters of names from the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, text)
}
