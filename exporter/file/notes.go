// SPDX-License-Identifier: Apache-2.0

package file

import (
	"slices"
	"strconv"
	"strings"

	"github.com/google/pprof/profile"

	"github.com/heapwire/heapwire/exporter/sink"
)

// Notes are what a profile's file says of its dump beside the profile, as comments of the profile: a pprof file has no other
// place for it.
type Notes struct {
	Service, Rank, Reason, View string
	Seq                         uint64
	Forked                      bool
	Figures                     map[string]int64 // those of HEAPWIRE_META, and "step"
	Giants                      []string
}

// noted opens each comment of ours: "heapwire.figure rss=1024".
const noted = "heapwire."

func annotate(p *profile.Profile, it *sink.Item) {
	add := func(key, value string) {
		if value != "" {
			p.Comments = append(p.Comments, noted+key+" "+value)
		}
	}
	add("service", it.Identity.ServiceName)
	add("rank", it.Identity.Rank)
	add("reason", it.Reason)
	add("view", it.View)
	if it.Seq > 0 {
		add("seq", strconv.FormatUint(it.Seq, 10))
	}
	if it.Identity.Forked {
		add("forked", "true")
	}
	var keys []string
	for k := range it.Figures {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		add("figure", k+"="+strconv.FormatInt(it.Figures[k], 10))
	}
	for _, g := range it.Giants {
		add("giant", g)
	}
}

// NotesOf reads the notes of a file's profile. What is no note of ours, or cannot be read, is left out.
func NotesOf(p *profile.Profile) Notes {
	n := Notes{}
	for _, c := range p.Comments {
		key, value, ok := strings.Cut(strings.TrimPrefix(c, noted), " ")
		if !ok || !strings.HasPrefix(c, noted) {
			continue
		}
		switch key {
		case "service":
			n.Service = value
		case "rank":
			n.Rank = value
		case "reason":
			n.Reason = value
		case "view":
			n.View = value
		case "seq":
			n.Seq, _ = strconv.ParseUint(value, 10, 64)
		case "forked":
			n.Forked = value == "true"
		case "figure":
			name, text, _ := strings.Cut(value, "=")
			if v, err := strconv.ParseInt(text, 10, 64); err == nil {
				if n.Figures == nil {
					n.Figures = map[string]int64{}
				}
				n.Figures[name] = v
			}
		case "giant":
			n.Giants = append(n.Giants, value)
		}
	}
	return n
}
