// SPDX-License-Identifier: Apache-2.0

package pickle_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/heapwire/heapwire/convert/pickle"
)

// reader builds what a pickle holds, as text: the plainest visitor.
type reader struct {
	m       *pickle.Machine
	texts   []string
	calls   int
	index   map[string]int64
	top     string
	paths   []string
	noRefs  bool // drops every dict
	refuse  error
	parents int
}

const tagText = 7

func (r *reader) ref(text string) pickle.Value {
	r.top = text
	id, ok := r.index[text]
	if !ok {
		id = int64(len(r.texts))
		r.texts = append(r.texts, text)
		if r.index == nil {
			r.index = map[string]int64{}
		}
		r.index[text] = id
	}
	return pickle.Reference(tagText, id)
}

func (r *reader) text(v *pickle.Value) string {
	switch v.Kind() {
	case pickle.None:
		return "None"
	case pickle.Bool:
		return map[int64]string{0: "False", 1: "True"}[v.N]
	case pickle.Int:
		return strconv.FormatInt(v.N, 10)
	case pickle.Float:
		return strconv.FormatFloat(v.Float(), 'g', -1, 64)
	case pickle.String:
		return strconv.Quote(r.m.Text(v.N))
	case pickle.List:
		return "[]"
	case pickle.Dict:
		return "{}"
	case pickle.Dropped:
		return fmt.Sprintf("dropped*%d", v.N)
	}
	if !v.Is(tagText) {
		return "?"
	}
	return r.texts[v.N]
}

func (r *reader) Dict(dict pickle.Value, pairs []pickle.Value) (pickle.Value, error) {
	r.calls++
	r.path()
	if r.noRefs {
		return pickle.Drop(), r.refuse
	}
	body := ""
	if dict.Is(tagText) {
		body = strings.TrimSuffix(r.texts[dict.N][1:], "}") + ", "
	}
	var items []string
	for i := 0; i < len(pairs); i += 2 {
		items = append(items, r.text(&pairs[i])+": "+r.text(&pairs[i+1]))
	}
	return r.ref("{" + body + strings.Join(items, ", ") + "}"), r.refuse
}

func (r *reader) List(list pickle.Value, items []pickle.Value) (pickle.Value, error) {
	r.calls++
	r.path()
	body := ""
	if list.Is(tagText) {
		body = strings.TrimSuffix(r.texts[list.N][1:], "]") + ", "
	}
	var texts []string
	for i := range items {
		texts = append(texts, r.text(&items[i]))
	}
	return r.ref("[" + body + strings.Join(texts, ", ") + "]"), r.refuse
}

func (r *reader) Tuple(items []pickle.Value) (pickle.Value, error) {
	r.calls++
	var texts []string
	for i := range items {
		texts = append(texts, r.text(&items[i]))
	}
	return r.ref("(" + strings.Join(texts, ", ") + ")"), nil
}

func (r *reader) path() {
	var steps []string
	for _, s := range r.m.Path() {
		if s.Key >= 0 {
			steps = append(steps, r.m.Text(s.Key))
		} else {
			steps = append(steps, strconv.FormatInt(s.Index, 10))
		}
	}
	if (r.m.Parent() == nil) != (len(steps) == 0) {
		r.parents++
	}
	r.paths = append(r.paths, "/"+strings.Join(steps, "/"))
}

func load(in io.Reader, limits pickle.Limits) (*reader, error) {
	r := &reader{}
	r.m = pickle.New(in, r, limits)
	err := r.m.Run()
	return r, err
}

func text(s string) string { return "\x8c" + string(rune(len(s))) + s }

func TestOpcodes(t *testing.T) {
	// Scalars are seen as items of a tuple of one.
	f := func(ops, want string) {
		t.Helper()
		for name, in := range map[string]io.Reader{
			"whole": strings.NewReader("\x80\x04" + ops + "."), "bytes": iotest.OneByteReader(strings.NewReader("\x80\x04" + ops + ".")),
			"more behind": strings.NewReader("\x80\x04" + ops + "." + strings.Repeat("\x00", 1000)),
		} {
			r, err := load(in, pickle.Limits{})
			if err != nil {
				t.Errorf("%q, %s: %v", ops, name, err)
				continue
			}
			if r.top != want {
				t.Errorf("%q, %s: got %s, want %s", ops, name, r.top, want)
			}
			if r.m.Offset() != int64(len(ops))+3 {
				t.Errorf("%q, %s: ends at byte %d, want %d", ops, name, r.m.Offset(), len(ops)+3)
			}
		}
	}
	f("N\x85", "(None)")
	f("\x88\x89\x86", "(True, False)")
	f(")", "()")
	f("K\x01K\x02K\x03\x87", "(1, 2, 3)")
	f("(K\x01K\x02K\x03K\x04t", "(1, 2, 3, 4)")
	f("(t", "()")
	f("K\xff\x85", "(255)")
	f("M\x00\x80\x85", "(32768)")
	f("J\xff\xff\xff\xff\x85", "(-1)")
	f("J\x00\x00\x00\x80\x85", "(-2147483648)")
	f("\x8a\x00\x85", "(0)")
	f("\x8a\x01\xff\x85", "(-1)")
	f("\x8a\x02\xff\x00\x85", "(255)")
	f("\x8a\x05\x00\x00\x00\x00\x01\x85", "(4294967296)")
	f("\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80\x85", "(-9223372036854775808)")
	f("\x8a\x09\x00\x00\x00\x00\x00\x80\xff\xff\x00\x85", "(-140737488355328)") // 0xffff800000000000
	f("\x8b\x02\x00\x00\x00\x00\x01\x85", "(256)")
	f("\x8b\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x00\x85", "(-9223372036854775808)")
	f("G\x3f\xf8\x00\x00\x00\x00\x00\x00\x85", "(1.5)")
	f(text("")+"\x85", `("")`)
	f(text("abc")+"\x85", `("abc")`)
	f("X\x03\x00\x00\x00abc\x85", `("abc")`)
	f("\x8d\x03\x00\x00\x00\x00\x00\x00\x00abc\x85", `("abc")`)
	f(text("a\xffb")+"\x85", `("a`+"�"+`b")`)
	// Containers.
	f("]K\x01a", "[1]")
	f("](K\x01K\x02e", "[1, 2]")
	f("](K\x01e(K\x02e", "[1, 2]")
	f("](K\x01eK\x02a", "[1, 2]")
	f("(K\x01K\x02l", "[1, 2]")
	f("}"+text("a")+"K\x01s", `{"a": 1}`)
	f("}("+text("a")+"K\x01"+text("b")+"K\x02u", `{"a": 1, "b": 2}`)
	f("}("+text("a")+"K\x01u("+text("b")+"K\x02u", `{"a": 1, "b": 2}`)
	f("("+text("a")+"K\x01d", `{"a": 1}`)
	f("](]}e", "[[], {}]")
	f("](](e}(ue", "[[], {}]")
	f("\x95\x10\x00\x00\x00\x00\x00\x00\x00](K\x01\x95\x00\x00\x00\x00\x00\x00\x00\x00K\x02e", "[1, 2]")
	// The memo, by CPython's pickler and by the C++ one, which puts a container when it is complete.
	f(text("x")+"\x94h\x00\x86", `("x", "x")`)
	f(text("x")+"q\x00j\x00\x00\x00\x00\x86", `("x", "x")`)
	f("](]\x94(K\x01eh\x00e", "[[1], [1]]")
	f("](](K\x01eq\x00h\x00e", "[[1], [1]]")
	f("](]\x94h\x00e", "[[], []]")
	f("](}\x94(K\x01K\x02uh\x00e", "[{1: 2}, {1: 2}]")
	f("](]\x94(K\x01e(K\x02eh\x00e", "[[1, 2], [1, 2]]")
	f("(K\x05q\x00h\x00l", "[5, 5]")
	f("(NN\x94\x88\x94\x89\x94h\x00h\x01h\x02l", "[None, None, True, False, None, True, False]")
	f("K\x01\x85\x94h\x00\x86", "((1), (1))")
	f(text("x")+"q\x00"+text("y")+"q\x00h\x00\x87", `("x", "y", "y")`)
	f("](\x8c\x01a\x94\x85\x94h\x01h\x00\x86e", `[("a"), (("a"), "a")]`)
}

// Lists that are nothing but gets are remembered by their bytes: a slot that changes in between must be seen.
func TestEqualGetsOfChangedSlots(t *testing.T) {
	one, two := "K\x01\x85", "K\x02\x85"
	ops := "\x80\x04](" + one + "q\x00](h\x00h\x00e](h\x00h\x00e" + two + "q\x00](h\x00h\x00e](j\x00\x00\x00\x00h\x00ee."
	r, err := load(strings.NewReader(ops+strings.Repeat("\x00", 1000)), pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if want := "[(1), [(1), (1)], [(1), (1)], (2), [(2), (2)], [(2), (2)]]"; r.top != want {
		t.Errorf("got %s, want %s", r.top, want)
	}
	if r.calls != 6 { // two tuples, three lists of four, and the whole
		t.Errorf("%d calls, want 6", r.calls)
	}
	// A list that grows after others have read it.
	ops = "\x80\x04](]\x94(" + one + "\x94e](h\x00h\x01eh\x00(" + two + "e](h\x00h\x01ee."
	r, err = load(strings.NewReader(ops+strings.Repeat("\x00", 1000)), pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.top, "[[(1)], (1)]") {
		t.Errorf("got %s", r.top)
	}
	// A list of two parts, the second of which holds a list that reads the first.
	ops = "\x80\x04](]\x94(" + one + "e(](h\x00h\x00ee](h\x00h\x00ee."
	r, err = load(strings.NewReader(ops+strings.Repeat("\x00", 1000)), pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if whole := "[(1), [[(1)], [(1)]]]"; r.top != "["+whole+", ["+whole+", "+whole+"]]" {
		t.Errorf("got %s", r.top)
	}
}

func TestWhatIsNotDataIsRefused(t *testing.T) {
	allowed := "(.JKMNXadehjl]qrstu)G}\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x94\x95"
	for op := range 256 {
		if strings.IndexByte(allowed, byte(op)) >= 0 {
			continue
		}
		in := append([]byte("\x80\x04]"), byte(op))
		_, err := load(bytes.NewReader(append(in, make([]byte, 300)...)), pickle.Limits{})
		want := fmt.Sprintf("byte 3: opcode %s: ", pickle.OpcodeName(byte(op)))
		if !errors.Is(err, pickle.ErrRefused) || !strings.Contains(err.Error(), want) {
			t.Errorf("opcode %#x: got %v, want %q", op, err, want)
		}
		// At the very end of the input too.
		if _, err := load(bytes.NewReader(in), pickle.Limits{}); !errors.Is(err, pickle.ErrRefused) && !errors.Is(err, pickle.ErrTruncated) {
			t.Errorf("opcode %#x at the end: %v", op, err)
		}
	}
	if n := pickle.OpcodeName(0x93); n != "STACK_GLOBAL" {
		t.Errorf("0x93 is %s", n)
	}
	if n := pickle.OpcodeName(0xfe); n != "0xfe" {
		t.Errorf("0xfe is %s", n)
	}
}

func TestErrors(t *testing.T) {
	f := func(ops string, want error, where string) {
		t.Helper()
		_, err := load(strings.NewReader(ops), pickle.Limits{Text: 1000, Stack: 4096, Marks: 100})
		if !errors.Is(err, want) || !strings.Contains(fmt.Sprint(err), where) {
			t.Errorf("%.60q: got %v, want %v with %q", ops, err, want, where)
		}
	}
	f("", pickle.ErrTruncated, "byte 0: the input is empty")
	f("\x80", pickle.ErrTruncated, "byte 1")
	f("\x80\x04", pickle.ErrTruncated, "byte 2")
	f("\x80\x04K", pickle.ErrTruncated, "byte 3")
	f("\x80\x04X\x05\x00\x00\x00abc", pickle.ErrTruncated, "byte 10")
	f("\x80\x01.", pickle.ErrNotPickle, "byte 0")
	f("\x80\x06.", pickle.ErrNotPickle, "byte 0")
	f("(dp0\n.", pickle.ErrNotPickle, "byte 0")
	f("\x80\x04.", pickle.ErrMalformed, "byte 2: opcode STOP")
	f("\x80\x04NN.", pickle.ErrMalformed, "STOP with 2 values")
	f("\x80\x04N(.", pickle.ErrMalformed, "1 marks")
	for _, op := range []string{"\x94", "q\x00", "a", "e", "s", "u", "d", "l", "t", "\x85", "\x86", "\x87"} {
		f("\x80\x04"+op+".", pickle.ErrMalformed, "byte 2")
	}
	f("\x80\x04](K\x01a.", pickle.ErrMalformed, "not on the stack") // below the mark
	f("\x80\x04K\x01(\x85.", pickle.ErrMalformed, "not on the stack")
	f("\x80\x04K\x01K\x02a.", pickle.ErrMalformed, "no list")
	f("\x80\x04]K\x01K\x02s.", pickle.ErrMalformed, "no dict")
	f("\x80\x04}K\x01a.", pickle.ErrMalformed, "no list")
	f("\x80\x04}(K\x01u.", pickle.ErrMalformed, "key without a value")
	f("\x80\x04h\x00.", pickle.ErrMalformed, "slot 0 is read before")
	f("\x80\x04j\xff\xff\xff\xff.", pickle.ErrMalformed, "slot 4294967295")
	f("\x80\x04Nr\xff\xff\xff\xff.", pickle.ErrMalformed, "slot 4294967295 after 0 puts")
	f("\x80\x04]\x94(h\x00e.", pickle.ErrMalformed, "still open")
	f("\x80\x04}\x94(K\x01h\x00u.", pickle.ErrMalformed, "still open")
	f("\x80\x04]\x94h\x00a.", pickle.ErrMalformed, "appended to itself")
	f("\x80\x04\x8a\x0a"+strings.Repeat("\x00", 10)+"\x85.", pickle.ErrMalformed, "10 bytes")
	f("\x80\x04\x8a\x09"+strings.Repeat("\xff", 9)+"\x85.", pickle.ErrMalformed, "9 bytes")
	f("\x80\x04\x8b\xff\xff\xff\x7f", pickle.ErrLimit, "2147483647")
	f("\x80\x04X\xe9\x03\x00\x00", pickle.ErrLimit, "string of 1001 bytes")
	f("\x80\x04"+strings.Repeat("]", 5000), pickle.ErrLimit, "more than 4096 values")
	f("\x80\x04"+strings.Repeat("](", 101), pickle.ErrLimit, "more than 100 containers")
	f("\x80\x04\x80\x04", pickle.ErrRefused, "byte 2: opcode PROTO")
}

func TestErrorsOfVisitorAndReader(t *testing.T) {
	broken := errors.New("disk on fire")
	if _, err := load(io.MultiReader(strings.NewReader("\x80\x04]("), iotest.ErrReader(broken)), pickle.Limits{}); !errors.Is(err, broken) || !strings.Contains(err.Error(), "byte 4") {
		t.Errorf("got %v", err)
	}
	for _, ops := range []string{"]K\x01a", "](K\x01e", "}K\x01K\x02s"} {
		r := &reader{refuse: broken}
		r.m = pickle.New(strings.NewReader("\x80\x04"+ops+"."), r, pickle.Limits{})
		if err := r.m.Run(); !errors.Is(err, broken) {
			t.Errorf("%q: got %v", ops, err)
		}
	}
	if _, err := load(idle{}, pickle.Limits{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that gives nothing: %v", err)
	}
}

type idle struct{}

func (idle) Read([]byte) (int, error) { return 0, nil }

func TestPaths(t *testing.T) {
	f := func(ops string, want ...string) {
		t.Helper()
		r, err := load(strings.NewReader("\x80\x04"+ops+"."), pickle.Limits{})
		if err != nil {
			t.Errorf("%q: %v", ops, err)
			return
		}
		if !slices.Equal(r.paths, want) || r.parents > 0 {
			t.Errorf("%q: got %v, want %v", ops, r.paths, want)
		}
	}
	one := "}K\x01K\x02s" // {1: 2}
	f(one, "/")
	f("]"+one+"a", "/0", "/")
	f("](N"+one+one+"e", "/1", "/2", "/")
	f("](N"+one+"e("+one+one+"e", "/1", "/", "/0", "/1", "/") // a list with a meaning has no count
	f("}"+text("a")+one+"s", "/a", "/")
	f("}("+text("a")+one+text("b")+one+"u", "/a", "/b", "/")
	f("}("+text("a")+"]"+one+"a"+text("b")+"K\x01u", "/a/0", "/a", "/")
	// Two lists of dicts in a list, as the traces of two devices: of one event each, of several, the first one empty.
	f("}("+text("t")+"](]"+one+"a]"+one+"aeu", "/t/0/0", "/t/0", "/t/1/0", "/t/1", "/t", "/")
	f("}("+text("t")+"](](NN"+one+"e](N"+one+"eeu", "/t/0/2", "/t/0", "/t/1/1", "/t/1", "/t", "/")
	f("}("+text("t")+"](]]"+one+"aeu", "/t/1/0", "/t/1", "/t", "/")
	f("}("+text("t")+"]](N"+one+"eau", "/t/0/1", "/t/0", "/t", "/")
}

// Dropped items of one list become one value, so that a batch of ten million costs nothing.
func TestDroppedItemsAreOne(t *testing.T) {
	one := "}(K\x01K\x02u"
	many := strings.Repeat(one, 5000)
	for _, ops := range []string{"](" + many + "e", "](" + strings.Repeat(one+"q\x00", 5000) + "e"} {
		r := &reader{noRefs: true}
		r.m = pickle.New(strings.NewReader("\x80\x02"+ops+"."), r, pickle.Limits{Stack: 1024})
		if err := r.m.Run(); err != nil {
			t.Fatal(err)
		}
		if r.top != "[dropped*5000]" || r.paths[4999] != "/4999" {
			t.Errorf("got %s, path %s", r.top, r.paths[4999])
		}
	}
	// In a dict they are its values.
	r := &reader{noRefs: true}
	r.m = pickle.New(strings.NewReader("\x80\x02]("+"N"+one+"N"+one+"t"+one+"e."), r, pickle.Limits{})
	if err := r.m.Run(); err == nil {
		t.Error("an APPENDS without its mark")
	}
}

// Slots hold two bytes as long as there are few distinct values, four beyond.
func TestMemoOfManyDistinctValues(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("\x80\x04](")
	var slots []string
	memoise := func(s string) {
		b.WriteString(text(s) + "\x94")
		slots = append(slots, s)
		if len(slots)%1000 == 999 {
			b.WriteString("e(")
		}
	}
	for i := range 150_000 {
		memoise(strconv.Itoa(i))
		if i > 65_000 && i < 66_000 || i > 140_000 { // what was seen before, with small and with large numbers
			for range 3 {
				memoise("7")
			}
			for range 3 {
				memoise(strconv.Itoa(i - 10))
			}
		}
	}
	var want []string
	b.WriteString("e(")
	for i := range slots {
		b.WriteByte('j')
		binary.Write(&b, binary.LittleEndian, uint32(i))
		want = append(want, slots[i])
	}
	b.WriteString("e.")
	v := &last{}
	v.m = pickle.New(&b, v, pickle.Limits{})
	if err := v.m.Run(); err != nil {
		t.Fatal(err)
	}
	if v.text != strings.Join(want, " ") {
		t.Error("the slots read otherwise than they were written")
	}
}

// last keeps the last items of a list.
type last struct {
	m    *pickle.Machine
	text string
}

func (l *last) Dict(dict pickle.Value, _ []pickle.Value) (pickle.Value, error) { return dict, nil }
func (l *last) Tuple([]pickle.Value) (pickle.Value, error)                     { return pickle.Drop(), nil }
func (l *last) List(list pickle.Value, items []pickle.Value) (pickle.Value, error) {
	var texts []string
	for _, v := range items {
		texts = append(texts, l.m.Text(v.N))
	}
	l.text = strings.Join(texts, " ")
	return list, nil
}

func TestTextsBeyondTheLimitAreLeftOut(t *testing.T) {
	ops := "\x80\x04](" + text("one") + text("two") + text("three") + text("one") + text("four") + "e."
	r, err := load(strings.NewReader(ops), pickle.Limits{Texts: 2})
	if err != nil {
		t.Fatal(err)
	}
	if want := `["one", "two", "[text left out]", "one", "[text left out]"]`; r.top != want || r.m.LeftOut() != 2 {
		t.Errorf("got %s, %d left out, want %s", r.top, r.m.LeftOut(), want)
	}
	r, err = load(strings.NewReader(ops), pickle.Limits{AllText: 7})
	if err != nil || r.m.LeftOut() != 2 {
		t.Errorf("got %s, %v", r.top, err)
	}
	if r.m.Texts() != 3 {
		t.Errorf("%d texts", r.m.Texts())
	}
}

func TestInternNumbersCountUp(t *testing.T) {
	r := &reader{}
	r.m = pickle.New(strings.NewReader("\x80\x04"+text("b")+"\x85."), r, pickle.Limits{})
	for i, s := range []string{"a", "b", "c"} {
		if n := r.m.Intern(s); n != int64(i) {
			t.Errorf("%s is number %d", s, n)
		}
	}
	if err := r.m.Run(); err != nil || r.m.Texts() != 3 {
		t.Errorf("%v, %d texts", err, r.m.Texts())
	}
}

// sample is a pickle with every opcode that is understood.
func sample() []byte {
	var b bytes.Buffer
	b.WriteString("\x80\x04\x95\x00\x01\x00\x00\x00\x00\x00\x00}\x94(" + text("list") + "\x94](K\x01M\x02\x03J\x04\x05\x06\x07\x8a\x05\x01\x02\x03\x04\x05")
	b.WriteString("\x8b\x02\x00\x00\x00\x01\x02G")
	binary.Write(&b, binary.BigEndian, math.Pi)
	b.WriteString("NN\x88\x89e" + text("tuples") + "\x94](K\x01\x85\x94K\x01K\x02\x86q\x05K\x01K\x02K\x03\x87)(K\x01t(K\x01l(K\x01K\x02de")
	b.WriteString(text("again") + "](h\x01j\x02\x00\x00\x00h\x03e" + "X\x04\x00\x00\x00long" + "\x8d\x05\x00\x00\x00\x00\x00\x00\x00" + "longe")
	b.WriteString(text("one") + "}K\x01K\x02s" + text("item") + "]K\x01ar\x06\x00\x00\x00u.")
	return b.Bytes()
}

func TestCutAtAnyByteIsTruncated(t *testing.T) {
	data := sample()
	r, err := load(bytes.NewReader(data), pickle.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for cut := range data {
		part, err := load(bytes.NewReader(data[:cut]), pickle.Limits{})
		if !errors.Is(err, pickle.ErrTruncated) || !strings.Contains(err.Error(), fmt.Sprintf("byte %d:", cut)) {
			t.Errorf("cut at %d: %v", cut, err)
		}
		if part.calls < calls || part.calls > r.calls {
			t.Errorf("cut at %d: %d calls, %d one byte before, %d for the whole", cut, part.calls, calls, r.calls)
		}
		calls = part.calls
	}
	if calls != r.calls {
		t.Errorf("%d calls without the STOP, %d with it", calls, r.calls)
	}
}

// FuzzPickle: no panic; however the input is cut into reads, the result is the same.
func FuzzPickle(f *testing.F) {
	f.Add(sample())
	f.Add([]byte("\x80\x02](}(K\x01K\x02uq\x00}(K\x01K\x02uq\x01e."))
	f.Add([]byte("\x80\x05\x95\x10\x00\x00\x00\x00\x00\x00\x00](\x8c\x01ah\x00j\x01\x00\x00\x00e."))
	f.Add([]byte("\x80\x04](K\x01\x85\x94](h\x00h\x00e](h\x00h\x00ee."))
	f.Fuzz(func(t *testing.T, data []byte) {
		limits := pickle.Limits{Text: 1 << 12, Stack: 1 << 12, Marks: 1 << 8, Objects: 1 << 12}
		whole, err := load(bytes.NewReader(data), limits)
		bytewise, err2 := load(iotest.OneByteReader(bytes.NewReader(data)), limits)
		if fmt.Sprint(err) != fmt.Sprint(err2) || whole.top != bytewise.top {
			t.Errorf("whole: %v %s, byte by byte: %v %s", err, whole.top, err2, bytewise.top)
		}
	})
}

func BenchmarkRun(b *testing.B) {
	var in bytes.Buffer
	in.WriteString("\x80\x04](")
	for range 10_000 {
		in.WriteString("}\x94(" + text("action") + text("alloc") + text("size") + "M\x10\x20" + text("frames") + "]\x94(K\x01\x85eu")
	}
	in.WriteString("e.")
	b.SetBytes(int64(in.Len()))
	b.ReportAllocs()
	for b.Loop() {
		v := &last{}
		v.m = pickle.New(bytes.NewReader(in.Bytes()), v, pickle.Limits{})
		if err := v.m.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

// keeper wants nothing of containers but their length.
type keeper struct{ lengths []int64 }

func (k *keeper) Dict(dict pickle.Value, _ []pickle.Value) (pickle.Value, error) { return dict, nil }
func (k *keeper) List(list pickle.Value, _ []pickle.Value) (pickle.Value, error) { return list, nil }
func (k *keeper) Tuple(items []pickle.Value) (pickle.Value, error) {
	for _, v := range items {
		k.lengths = append(k.lengths, v.N)
	}
	return pickle.Drop(), nil
}

func TestContainersWithoutMeaningHaveTheirLength(t *testing.T) {
	k := &keeper{}
	ops := "\x80\x04](}(K\x01K\x02K\x03K\x04u\x85](K\x01K\x02e(K\x03e\x85}\x85]\x85e."
	if err := pickle.New(strings.NewReader(ops), k, pickle.Limits{}).Run(); err != nil {
		t.Fatal(err)
	}
	if want := []int64{2, 3, 0, 0}; !slices.Equal(k.lengths, want) {
		t.Errorf("got %v, want %v", k.lengths, want)
	}
}
