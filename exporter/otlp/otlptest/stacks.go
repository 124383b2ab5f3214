// SPDX-License-Identifier: Apache-2.0

package otlptest

import (
	"fmt"
	"strings"

	"github.com/google/pprof/profile"
	"go.opentelemetry.io/collector/pdata/pprofile"

	convert "github.com/heapwire/heapwire/convert/otlp"
)

// Totals are values by stack and sample type. A stack is its frames leaf first, one a line, "function file:line" each, or
// "mapping+address" for a frame without a name; a sample type is "type/unit". Samples that differ in labels only are
// added up, zeros are left out.
type Totals map[string]map[string]int64

func (t Totals) add(stack, sampleType string, v int64) {
	if v == 0 {
		return
	}
	if t[stack] == nil {
		t[stack] = map[string]int64{}
	}
	t[stack][sampleType] += v
}

// Sum gives the total of each sample type.
func (t Totals) Sum() map[string]int64 {
	sum := map[string]int64{}
	for _, byType := range t {
		for k, v := range byType {
			sum[k] += v
		}
	}
	return sum
}

// Stacks reads received profiles. Profiles that break a rule of the data model are an error.
func Stacks(received ...pprofile.Profiles) (Totals, error) {
	totals := Totals{}
	for i, pd := range received {
		if err := convert.Check(pd); err != nil {
			return nil, fmt.Errorf("request %d: %w", i, err)
		}
		d := pd.Dictionary()
		str := func(i int32) string { return d.StringTable().At(int(i)) }
		stack := func(i int32) string {
			var b strings.Builder
			for _, l := range d.StackTable().At(int(i)).LocationIndices().All() {
				loc := d.LocationTable().At(int(l))
				if loc.Lines().Len() == 0 {
					m := d.MappingTable().At(int(loc.MappingIndex()))
					fmt.Fprintf(&b, "%s+%#x\n", str(m.FilenameStrindex()), loc.Address())
				}
				for _, ln := range loc.Lines().All() {
					f := d.FunctionTable().At(int(ln.FunctionIndex()))
					fmt.Fprintf(&b, "%s %s:%d\n", str(f.NameStrindex()), str(f.FilenameStrindex()), ln.Line())
				}
			}
			return b.String()
		}
		for _, rp := range pd.ResourceProfiles().All() {
			for _, sp := range rp.ScopeProfiles().All() {
				for _, p := range sp.Profiles().All() {
					sampleType := str(p.SampleType().TypeStrindex()) + "/" + str(p.SampleType().UnitStrindex())
					for _, s := range p.Samples().All() {
						totals.add(stack(s.StackIndex()), sampleType, s.Values().At(0))
					}
				}
			}
		}
	}
	return totals, nil
}

// PprofStacks reads a pprof profile into the same form.
func PprofStacks(profiles ...*profile.Profile) Totals {
	totals := Totals{}
	for _, p := range profiles {
		for _, s := range p.Sample {
			var b strings.Builder
			for _, loc := range s.Location {
				if len(loc.Line) == 0 {
					file := ""
					if loc.Mapping != nil {
						file = loc.Mapping.File
					}
					fmt.Fprintf(&b, "%s+%#x\n", file, loc.Address)
				}
				for _, ln := range loc.Line {
					f := ln.Function
					if f == nil {
						f = &profile.Function{}
					}
					fmt.Fprintf(&b, "%s %s:%d\n", f.Name, f.Filename, ln.Line)
				}
			}
			for i, v := range s.Value {
				totals.add(b.String(), p.SampleType[i].Type+"/"+p.SampleType[i].Unit, v)
			}
		}
	}
	return totals
}
