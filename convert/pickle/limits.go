// SPDX-License-Identifier: Apache-2.0

package pickle

// Limits bound what a hostile pickle can cost. A zero field means the default.
type Limits struct {
	Text    int // bytes of one string; 1 MiB
	Texts   int // distinct strings that keep their text; 1 Mi
	AllText int // bytes of all of them together; 64 MiB
	Stack   int // values that wait for their container; 1 Mi, 16 bytes each
	Marks   int // containers open at a time; 64 Ki
	Objects int // distinct values in the memo: strings, numbers, what the visitor returned; 8 Mi
	Memo    int // memo slots; 2^29. Beyond the first million there may also be no more than one for 8 bytes read
}

func (l Limits) withDefaults() Limits {
	for _, f := range []struct {
		field *int
		value int
	}{
		{&l.Text, 1 << 20}, {&l.Texts, 1 << 20}, {&l.AllText, 64 << 20}, {&l.Stack, 1 << 20}, {&l.Marks, 1 << 16},
		{&l.Objects, 8 << 20}, {&l.Memo, 1 << 29},
	} {
		if *f.field <= 0 {
			*f.field = f.value
		}
	}
	return l
}
