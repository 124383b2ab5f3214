// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// caches are ways to fill up, by the share of the time that has gone. Each is nearly full, or full, at the end.
var caches = map[string]func(random *rand.Rand) func(at float64) float64{
	// Keys at random out of a fixed number: full to 95 % and more at the end.
	"of random keys": func(random *rand.Rand) func(float64) float64 {
		speed := 3 + 5*random.Float64()
		return func(at float64) float64 { return -math.Expm1(-speed * at) }
	},
	// One key after the other up to a bound that is reached before half of the time is over.
	"with a bound": func(random *rand.Rand) func(float64) float64 {
		full := 0.1 + 0.4*random.Float64()
		return func(at float64) float64 { return min(at/full, 1) }
	},
}

// filled is a process in which something holds size bytes times how(share of the time), over a base that was there before.
func filled(random *rand.Rand, dumps int, size float64, how func(float64) float64) Process {
	base := random.Int64N(20 * mib)
	return course(random, dumps, map[string]func(int) int64{
		"kept":  func(i int) int64 { return base + int64(size*how(float64(i)/float64(dumps-1))) },
		"other": func(int) int64 { return 50 * mib },
	})
}

// What fills up and is full is no leak in any of many draws, from few dumps and from more, whatever its size. What leaks is said
// to in nearly all, if it is 64 MB at the default rate.
func TestCachesThatAreFullAreNoLeaks(t *testing.T) {
	const draws = 1000
	for _, dumps := range []int{3, 4, 5, 8} {
		t.Run(fmt.Sprint(dumps), func(t *testing.T) {
			t.Parallel()
			for name, cache := range caches {
				wrong, undecided := 0, 0
				for seed := range uint64(draws) {
					random := rand.New(rand.NewPCG(seed, uint64(dumps)))
					size := 12 * mib * math.Exp(random.Float64()*math.Log(40))
					p := filled(random, dumps, size, cache(random))
					if leaks := verdictsOf(p.Verdicts(), Leak); len(leaks) > 0 {
						if wrong++; wrong <= 3 {
							t.Logf("%s of %.0f MiB, %d dumps, seed %d: %s", name, size/mib, dumps, seed, leaks[0].Says)
						}
					}
					undecided += len(verdictsOf(p.Verdicts(), Undecided))
				}
				if wrong > 0 {
					t.Errorf("a cache %s is called a leak in %d draws of %d of %d dumps", name, wrong, draws, dumps)
				}
				t.Logf("a cache %s, %d dumps: nothing can be told in %d draws of %d", name, dumps, undecided, draws)
			}
			told, undecided := 0, 0
			for seed := range uint64(draws) {
				random := rand.New(rand.NewPCG(seed, uint64(100+dumps)))
				p := filled(random, dumps, 64e6, func(at float64) float64 { return at })
				told += len(verdictsOf(p.Verdicts(), Leak))
				undecided += len(verdictsOf(p.Verdicts(), Undecided))
			}
			if told < draws*95/100 {
				t.Errorf("a leak of 64 MB and %d dumps: told in %d draws of %d", dumps, told, draws)
			}
			t.Logf("a leak of 64 MB, %d dumps: told in %d draws, undecided in %d", dumps, told, undecided)
		})
	}
}

// Programs are not clocks: what grows by as much from each dump to the next goes on, however long a round took. What has grown and
// may have stopped is told with its line, and not as a leak.
func TestRoundsThatTakeLonger(t *testing.T) {
	even, longer := []int{0, 35, 70, 105, 140}, []int{0, 10, 20, 80, 140}
	for _, c := range []struct {
		holds []int64
		at    []int
		want  Kind
	}{
		{[]int64{0, 40, 80, 120, 160}, even, Leak},
		{[]int64{0, 40, 80, 120, 160}, longer, Leak},
		{[]int64{0, 40, 80, 99, 118}, even, Undecided},
		{[]int64{0, 60, 100, 100, 101}, even, Plateau},
	} {
		p := process()
		for i, held := range c.holds {
			s := SnapshotOf(profileOf(nil, site{function: "f", line: 3, size: mib, bytes: held * mib}, site{function: "g", line: 3, size: mib, bytes: mib}))
			s.Time = time.Unix(int64(100+c.at[i]), 0)
			for k, n := range s.Names {
				p.Names[k] = n
			}
			p.Series.Add(s)
		}
		if got := p.Verdicts(); len(got) != 1 || got[0].Kind != c.want || got[0].Stack.Place() != "f f.py:3" || got[0].Helps == "" {
			t.Errorf("%v: want %s, got %+v", c.holds, c.want, got)
		}
	}
}
