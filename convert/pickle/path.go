// SPDX-License-Identifier: Apache-2.0

package pickle

// Parent is the container that the container the visitor is being told of will be an item of, nil for none. The visitor
// may give it a meaning before its time by writing Kind, Tag and N. It holds until the call returns.
//
// A pickle tells what an item belongs to only when the item is appended. Where that leaves a choice, a dict after a list
// is taken to be in that list, and a list after a list to be its neighbour.
func (m *Machine) Parent() *Value {
	// Nearly always: one more item of a list whose items are dropped.
	if n := len(m.marks); n > 0 {
		if base := int(m.marks[n-1]); base > 0 && m.at > base && m.stack[m.at-1].Kind() == Dropped && m.stack[base-1].isList() {
			return &m.stack[base-1]
		}
	}
	at, _, _ := m.parent(m.at, len(m.marks)-1)
	if at < 0 {
		return nil
	}
	return &m.stack[at]
}

// Path is the way from the outermost container to the one the visitor is being told of, each as its place in the one
// around it.
func (m *Machine) Path() []Step {
	var path []Step
	for at, mark := m.at, len(m.marks)-1; ; {
		up, step, next := m.parent(at, mark)
		if up < 0 {
			break
		}
		path = append(path, step)
		at, mark = up, next
	}
	for i, j := 0, len(path)-1; i < j; i, j = i+1, j-1 {
		path[i], path[j] = path[j], path[i]
	}
	return path
}

// parent finds the container around the value at a position, given the last mark that may be below it.
func (m *Machine) parent(at, mark int) (int, Step, int) {
	for mark >= 0 && int(m.marks[mark]) > at {
		mark--
	}
	base := 0
	if mark >= 0 {
		base = int(m.marks[mark])
	}
	open := -1 // the container whose batch the mark began
	if mark >= 0 && base > 0 {
		open = base - 1
	}
	inDict := open >= 0 && m.stack[open].Kind() == Dict
	if at > base {
		below := &m.stack[at-1]
		if inDict && below.Kind() == String {
			return open, Step{Key: below.N}, mark - 1
		}
		// One item alone comes without a mark: APPEND, SETITEM.
		if below.isList() && (open < 0 || inDict || !m.stack[at].isList()) {
			return at - 1, Step{Key: -1, Index: below.count()}, mark
		}
		if below.Kind() == String && at-2 >= base && m.stack[at-2].Kind() == Dict {
			return at - 2, Step{Key: below.N}, mark
		}
	}
	if open < 0 {
		return -1, Step{}, -1
	}
	index := m.stack[open].count()
	for i := base; i < at; i++ {
		index += weight(&m.stack[i])
	}
	return open, Step{Key: -1, Index: index}, mark - 1
}

// count is how many items a list has so far, 0 for one that the visitor gave a meaning.
func (v *Value) count() int64 {
	if v.Kind() == List {
		return v.N
	}
	return 0
}
