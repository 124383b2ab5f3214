// SPDX-License-Identifier: Apache-2.0

package otlp

import (
	"errors"
	"fmt"

	"go.opentelemetry.io/collector/pdata/pprofile"
)

// Check says what is wrong with pd beyond what unmarshalling looks at, which is attribute references only: a table without
// its zero row, an index outside of its table, a profile that is no heap profile's shape. nil means that every sample can
// be followed to its names.
func Check(pd pprofile.Profiles) error {
	d := pd.Dictionary()
	c := &checker{
		strings: d.StringTable().Len(), mappings: d.MappingTable().Len(), locations: d.LocationTable().Len(),
		functions: d.FunctionTable().Len(), links: d.LinkTable().Len(), attrs: d.AttributeTable().Len(), stacks: d.StackTable().Len(),
	}
	c.zeroRows(d)
	if len(c.errs) > 0 {
		return errors.Join(c.errs...)
	}
	for i := range c.mappings {
		m := d.MappingTable().At(i)
		c.index("mapping", i, "filename", m.FilenameStrindex(), c.strings)
		c.attributes("mapping", i, m.AttributeIndices().AsRaw())
	}
	for i := range c.functions {
		f := d.FunctionTable().At(i)
		c.index("function", i, "name", f.NameStrindex(), c.strings)
		c.index("function", i, "system name", f.SystemNameStrindex(), c.strings)
		c.index("function", i, "file name", f.FilenameStrindex(), c.strings)
	}
	for i := range c.locations {
		l := d.LocationTable().At(i)
		c.index("location", i, "mapping", l.MappingIndex(), c.mappings)
		c.attributes("location", i, l.AttributeIndices().AsRaw())
		for _, ln := range l.Lines().All() {
			c.index("location", i, "function", ln.FunctionIndex(), c.functions)
		}
	}
	for i := range c.stacks {
		for _, l := range d.StackTable().At(i).LocationIndices().All() {
			c.index("stack", i, "location", l, c.locations)
		}
	}
	for i := range c.attrs {
		a := d.AttributeTable().At(i)
		c.index("attribute", i, "key", a.KeyStrindex(), c.strings)
		c.index("attribute", i, "unit", a.UnitStrindex(), c.strings)
	}
	for _, rp := range pd.ResourceProfiles().All() {
		for _, sp := range rp.ScopeProfiles().All() {
			for i, p := range sp.Profiles().All() {
				c.profile(i, p)
			}
		}
	}
	return errors.Join(c.errs...)
}

const maxFaults = 10

type checker struct {
	strings, mappings, locations, functions, links, attrs, stacks int

	errs []error
}

func (c *checker) fault(format string, args ...any) {
	if len(c.errs) < maxFaults {
		c.errs = append(c.errs, fmt.Errorf(format, args...))
	}
}

func (c *checker) zeroRows(d pprofile.ProfilesDictionary) {
	for name, n := range map[string]int{
		"string": c.strings, "mapping": c.mappings, "location": c.locations, "function": c.functions,
		"link": c.links, "attribute": c.attrs, "stack": c.stacks,
	} {
		if n == 0 {
			c.fault("the %s table has no zero row", name)
		}
	}
	if len(c.errs) > 0 {
		return
	}
	zero := []struct {
		table string
		is    bool
	}{
		{"string", d.StringTable().At(0) == ""},
		{"mapping", d.MappingTable().At(0).Equal(pprofile.NewMapping())},
		{"location", d.LocationTable().At(0).Equal(pprofile.NewLocation())},
		{"function", d.FunctionTable().At(0).Equal(pprofile.NewFunction())},
		{"link", d.LinkTable().At(0).Equal(pprofile.NewLink())},
		{"attribute", d.AttributeTable().At(0).Equal(pprofile.NewKeyValueAndUnit())},
		{"stack", d.StackTable().At(0).Equal(pprofile.NewStack())},
	}
	for _, z := range zero {
		if !z.is {
			c.fault("row 0 of the %s table is not zero", z.table)
		}
	}
}

func (c *checker) index(table string, row int, field string, i int32, n int) {
	if i < 0 || int(i) >= n {
		c.fault("%s %d: %s index %d outside of a table of %d", table, row, field, i, n)
	}
}

func (c *checker) attributes(table string, row int, indices []int32) {
	for _, i := range indices {
		c.index(table, row, "attribute", i, c.attrs)
	}
}

func (c *checker) profile(i int, p pprofile.Profile) {
	c.index("profile", i, "sample type", p.SampleType().TypeStrindex(), c.strings)
	c.index("profile", i, "sample unit", p.SampleType().UnitStrindex(), c.strings)
	c.index("profile", i, "period type", p.PeriodType().TypeStrindex(), c.strings)
	c.index("profile", i, "period unit", p.PeriodType().UnitStrindex(), c.strings)
	c.attributes("profile", i, p.AttributeIndices().AsRaw())
	for j, s := range p.Samples().All() {
		c.index("sample", j, "stack", s.StackIndex(), c.stacks)
		c.index("sample", j, "link", s.LinkIndex(), c.links)
		c.attributes("sample", j, s.AttributeIndices().AsRaw())
		if s.Values().Len() != 1 || s.TimestampsUnixNano().Len() != 0 {
			c.fault("sample %d of profile %d has %d values and %d timestamps, aggregated heap data has one and none",
				j, i, s.Values().Len(), s.TimestampsUnixNano().Len())
		}
	}
}
