// SPDX-License-Identifier: Apache-2.0

package jemalloc

import (
	"math"
	"strings"
)

// threadShare is one thread name's part of a stack, by that name's own per-thread lines. Only the proportions count:
// per-thread lines scale to other sums than the stack's own.
type threadShare struct {
	name  string
	value values
}

// threadLine reads "t<uid>: counts", in the header with the thread's name behind it. The uid is jemalloc's own counter.
func (p *parser) threadLine(line []byte) {
	uid, rest, ok := number(line[1:])
	if !ok || len(rest) == 0 || rest[0] != ':' {
		p.garbage(line)
		return
	}
	c, name, ok := parseCounts(rest[1:])
	if !ok {
		if p.lines.whole || p.lines.long {
			p.garbage(line)
		}
		return
	}
	if !p.counted {
		if p.report.Stacks == 0 && len(name) > 0 && p.lines.whole {
			if p.threadNames == nil {
				p.threadNames = map[uint64]string{}
			}
			// 5.3.1 prints names from a buffer of 16 bytes that ends in a NUL.
			text, _, _ := strings.Cut(string(name), "\x00")
			p.threadNames[uid] = strings.ToValidUTF8(text, "\uFFFD")
		}
		return
	}
	v, ok := estimate(c, p.sampleBytes)
	if !ok {
		p.garbage(line)
		return
	}
	if p.shares == nil {
		p.shares = map[int][]threadShare{}
	}
	n := p.stacks.length - 1
	p.shares[n] = addShare(p.shares[n], threadShare{p.threadNames[uid], v})
}

func addShare(to []threadShare, s threadShare) []threadShare {
	for i := range to {
		if to[i].name == s.name {
			to[i].value.add(s.value)
			return to
		}
	}
	return append(to, s)
}

func (v *values) add(w values) {
	for i := range v {
		v[i] += w[i]
	}
}

// split divides v by the shares, so that the rounded parts add up to the rounded whole: each part is the difference of
// two rounded running sums.
func split(v values, shares []threadShare) [][4]int64 {
	var sum, run values
	for _, s := range shares {
		sum.add(s.value)
	}
	parts := make([][4]int64, len(shares))
	var given [4]int64
	for i, s := range shares {
		run.add(s.value)
		for k := range v {
			upTo := v[k]
			if i < len(shares)-1 {
				upTo = 0
				if sum[k] > 0 {
					upTo = v[k] * (run[k] / sum[k])
				}
			}
			r := int64(math.Round(upTo))
			parts[i][k] = r - given[k]
			given[k] = r
		}
	}
	return parts
}
