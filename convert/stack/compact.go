// SPDX-License-Identifier: Apache-2.0

package stack

import "github.com/google/pprof/profile"

// Compact removes the locations, functions and mappings that no sample refers to, and numbers the others anew in the
// order they have. The samples stay as they are.
func Compact(p *profile.Profile) {
	for i, l := range p.Location {
		l.ID = uint64(i + 1)
	}
	used := make([]bool, len(p.Location))
	for _, s := range p.Sample {
		for _, l := range s.Location {
			used[l.ID-1] = true
		}
	}
	functions := map[*profile.Function]bool{}
	mappings := map[*profile.Mapping]bool{}
	locations := p.Location[:0]
	for i, l := range p.Location {
		if !used[i] {
			continue
		}
		locations = append(locations, l)
		l.ID = uint64(len(locations))
		if l.Mapping != nil {
			mappings[l.Mapping] = true
		}
		for _, line := range l.Line {
			functions[line.Function] = true
		}
	}
	clear(p.Location[len(locations):])
	p.Location = locations

	keptFunctions := p.Function[:0]
	for _, f := range p.Function {
		if functions[f] {
			keptFunctions = append(keptFunctions, f)
			f.ID = uint64(len(keptFunctions))
		}
	}
	clear(p.Function[len(keptFunctions):])
	p.Function = keptFunctions

	keptMappings := p.Mapping[:0]
	for _, m := range p.Mapping {
		if mappings[m] {
			keptMappings = append(keptMappings, m)
			m.ID = uint64(len(keptMappings))
		}
	}
	clear(p.Mapping[len(keptMappings):])
	p.Mapping = keptMappings
}
