// SPDX-License-Identifier: Apache-2.0

package sink

import "sync"

// Progress remembers which parts of profiles that were split a back end has, so that a repeat goes on behind them. The
// zero value is ready. It forgets the oldest of more than 64.
type Progress struct {
	mu     sync.Mutex
	parts  map[[16]byte]int
	oldest [][16]byte
}

const maxProgress = 64

// Done is how many parts of a profile were kept.
func (p *Progress) Done(id [16]byte) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.parts[id]
}

// Keep notes how many parts the back end has.
func (p *Progress) Keep(id [16]byte, parts int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(id)
	if parts == 0 || id == ([16]byte{}) {
		return
	}
	if len(p.oldest) == maxProgress {
		p.forget(p.oldest[0])
	}
	if p.parts == nil {
		p.parts = map[[16]byte]int{}
	}
	p.parts[id] = parts
	p.oldest = append(p.oldest, id)
}

// Forget says that a profile needs no repeat any more.
func (p *Progress) Forget(id [16]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(id)
}

func (p *Progress) forget(id [16]byte) {
	if _, ok := p.parts[id]; !ok {
		return
	}
	delete(p.parts, id)
	for i, other := range p.oldest {
		if other == id {
			p.oldest = append(p.oldest[:i], p.oldest[i+1:]...)
			return
		}
	}
}
