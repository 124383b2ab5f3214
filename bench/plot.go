// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
)

// plotted are the variants of the picture, with their colours.
var plotted = []struct{ name, colour string }{
	{"glibc again", "#9a9a9a"},
	{"jemalloc alone", "#4c78a8"},
	{"shim", "#d62728"},
	{"shim, 64 KiB", "#f4a3a3"},
	{"memray", "#54a24b"},
	{"scalene", "#b279a2"},
	{"tracemalloc", "#e8a838"},
}

// plot draws CPU time ÷ glibc, a row a program, a dot a variant, on a logarithmic axis.
func plot(python string, results runs, _ []variant) []byte {
	const left, top, row, width = 110, 64, 30, 820
	right := float64(width - 30)
	most := 2.0
	for _, of := range results {
		for _, p := range plotted {
			most = max(most, quantile(ratios(of[p.name], of["glibc"], func(r run) float64 { return r.CPU }), 0.5))
		}
	}
	most *= 1.1
	const least = 0.6
	x := func(v float64) float64 {
		return left + (right-left)*math.Log(max(v, least)/least)/math.Log(most/least)
	}
	height := top + row*len(programs) + 40
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="%d" y="18" font-size="14">CPU time of the job ÷ plain glibc, Python %s</text>`+"\n", left, python)
	for i, p := range plotted {
		at := left + i*103
		fmt.Fprintf(&b, `<circle cx="%d" cy="38" r="5" fill="%s"/><text x="%d" y="42">%s</text>`+"\n", at, p.colour, at+9, p.name)
	}
	for _, tick := range []float64{0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100} {
		if tick > most {
			break
		}
		stroke := "#ddd"
		if tick == 1 {
			stroke = "#000"
		}
		fmt.Fprintf(&b, `<line x1="%.1f" y1="%d" x2="%.1f" y2="%d" stroke="%s"/>`+"\n", x(tick), top-6, x(tick), height-34, stroke)
		fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%g</text>`+"\n", x(tick), height-18, tick)
	}
	for i, p := range programs {
		name, y := strings.Join(p, " "), top+row*i+row/2
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end">%s</text>`+"\n", left-10, y+4, name)
		for _, v := range plotted {
			if r := ratios(results[name][v.name], results[name]["glibc"], func(r run) float64 { return r.CPU }); len(r) > 0 {
				fmt.Fprintf(&b, `<circle cx="%.1f" cy="%d" r="5" fill="%s" fill-opacity="0.85"><title>%s, %s: %.2f</title></circle>`+"\n",
					x(quantile(r, 0.5)), y, v.colour, name, v.name, quantile(r, 0.5))
			}
		}
	}
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}
