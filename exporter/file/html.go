// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"html"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/pprof/driver"
	"github.com/google/pprof/profile"
)

// driverLock guards pprof's driver, which keeps its configuration in package variables.
var driverLock sync.Mutex

// maxStacks bounds the size of a page and the time that it takes: at 10 000 deep stacks it would have 20 MB, all of whose
// small boxes are thinner than a pixel.
const maxStacks = 2000

// HTML renders a profile as one self-contained page with a flame graph: no other file, no network, no server. Live bytes
// are shown, or what else the profile has. Above 2000 stacks the smallest are one box that tells their number. The
// profile stays as it is.
func HTML(p *profile.Profile, title string) ([]byte, error) {
	driverLock.Lock()
	defer driverLock.Unlock()
	defer settingsOutOfReach()()

	own, err := private(p) // the driver changes what it gets
	if err != nil {
		return nil, fmt.Errorf("rendering the flame graph: %w", err)
	}
	own.DefaultSampleType = mainSampleType(p)
	lump(own, maxStacks)
	ui := &quiet{}
	page := &recorder{header: http.Header{}}
	err = driver.PProf(&driver.Options{
		Flagset: flags{"http": "localhost:0", "no_browser": "true", "symbolize": "none", "sample_index": own.DefaultSampleType},
		Fetch:   fetcher{own},
		Sym:     noSymbols{},
		Obj:     noObjects{},
		UI:      ui,
		HTTPServer: func(args *driver.HTTPServerArgs) error {
			req, err := http.NewRequest(http.MethodGet, "/flamegraph", nil)
			if err != nil {
				return err
			}
			args.Handlers["/flamegraph"].ServeHTTP(page, req)
			return nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("rendering the flame graph: %w", err)
	}
	if page.status >= 400 {
		return nil, fmt.Errorf("rendering the flame graph: %s: %s", strings.TrimSpace(page.body.String()), strings.Join(ui.errors, "; "))
	}
	return standalone(page.body.Bytes(), title), nil
}

// mainSampleType is what a viewer shows first: what the profile says, else live bytes, else any bytes, else the first.
func mainSampleType(p *profile.Profile) string {
	for _, is := range []func(*profile.ValueType) bool{
		func(st *profile.ValueType) bool { return st.Type == p.DefaultSampleType },
		func(st *profile.ValueType) bool { return st.Type == "inuse_space" },
		func(st *profile.ValueType) bool { return st.Unit == "bytes" },
		func(*profile.ValueType) bool { return true },
	} {
		if i := slices.IndexFunc(p.SampleType, is); i >= 0 {
			return p.SampleType[i].Type
		}
	}
	return ""
}

// lump makes one sample of all but the n largest, in the default sample type.
func lump(p *profile.Profile, n int) {
	if len(p.Sample) <= n {
		return
	}
	column := max(slices.IndexFunc(p.SampleType, func(st *profile.ValueType) bool { return st.Type == p.DefaultSampleType }), 0)
	slices.SortStableFunc(p.Sample, func(a, b *profile.Sample) int { return cmp.Compare(b.Value[column], a.Value[column]) })
	var functionID, locationID uint64
	for _, f := range p.Function {
		functionID = max(functionID, f.ID)
	}
	for _, l := range p.Location {
		locationID = max(locationID, l.ID)
	}
	rest := p.Sample[n:]
	f := &profile.Function{ID: functionID + 1, Name: fmt.Sprintf("[%d smaller stacks]", len(rest))}
	l := &profile.Location{ID: locationID + 1, Line: []profile.Line{{Function: f}}}
	all := &profile.Sample{Value: make([]int64, len(p.SampleType)), Location: []*profile.Location{l}}
	for _, s := range rest {
		for i, v := range s.Value {
			all.Value[i] += v
		}
	}
	p.Function, p.Location = append(p.Function, f), append(p.Location, l)
	p.Sample = append(p.Sample[:n:n], all)
}

// Links to the server that is not there, and menus made of them.
var (
	deadLink  = regexp.MustCompile(`(<a\b[^>]*?)\shref="(?:\./|\?)[^"]*"`)
	pageTitle = regexp.MustCompile(`(?s)<title>.*?</title>`)
	details   = regexp.MustCompile(`(?s)(<a [^>]*id="details"[^>]*>).*?(</a>)`)
	configs   = regexp.MustCompile(`(?s)(<div id="config" class="menu-item">).*?(<div id="download")`)
	saved     = regexp.MustCompile(`(?s)(<datalist id="config-list">).*?(</datalist>)`)
)

// hideMenus leaves the search box, the details and the graph: everything else asks a server.
const hideMenus = `<style>#view, #sample, #refine, #config, #download, #action-menu { display: none !important; }</style>
</head>`

func standalone(page []byte, title string) []byte {
	title = html.EscapeString(title)
	page = pageTitle.ReplaceAllLiteral(page, []byte("<title>"+title+"</title>"))
	page = details.ReplaceAll(page, []byte("${1}"+strings.ReplaceAll(title, "$", "$$")+"${2}"))
	page = configs.ReplaceAll(page, []byte("${1}</div>\n${2}")) // these two have the names of the user's saved views
	page = saved.ReplaceAll(page, []byte("${1}${2}"))
	page = deadLink.ReplaceAll(page, []byte(`${1} href="#"`))
	return bytes.Replace(page, []byte("</head>"), []byte(hideMenus), 1)
}

// settingsOutOfReach makes the driver start without a home directory, where it would look for saved views and fails if it
// has none. The returned function undoes it.
func settingsOutOfReach() func() {
	if _, err := os.UserConfigDir(); err == nil {
		return func() {}
	}
	const name = "XDG_CONFIG_HOME"
	old, had := os.LookupEnv(name)
	if err := os.Setenv(name, os.DevNull); err != nil {
		return func() {}
	}
	return func() {
		if had {
			os.Setenv(name, old)
		} else {
			os.Unsetenv(name)
		}
	}
}

// fetcher hands the profile to the driver. Without a source address the driver takes it for a local file; else it would
// save a copy under $HOME/pprof.
type fetcher struct{ p *profile.Profile }

func (f fetcher) Fetch(string, time.Duration, time.Duration) (*profile.Profile, string, error) {
	return f.p, "", nil
}

// flags answers the driver's questions about its command line.
type flags map[string]string

func (f flags) Bool(name string, def bool, _ string) *bool {
	if v, ok := f[name]; ok {
		def = v == "true"
	}
	return &def
}

func (f flags) String(name, def, _ string) *string {
	if v, ok := f[name]; ok {
		def = v
	}
	return &def
}

func (flags) Int(_ string, def int, _ string) *int                 { return &def }
func (flags) Float64(_ string, def float64, _ string) *float64     { return &def }
func (flags) StringList(_ string, def string, _ string) *[]*string { return &[]*string{&def} }
func (flags) ExtraUsage() string                                   { return "" }
func (flags) AddExtraUsage(string)                                 {}
func (flags) Parse(func()) []string                                { return []string{"profile"} }

type noSymbols struct{}

func (noSymbols) Symbolize(string, driver.MappingSources, *profile.Profile) error { return nil }

// noObjects keeps the driver from opening libraries: names are in the profile already.
type noObjects struct{}

var errNoObjects = errors.New("object files are not read")

func (noObjects) Open(string, uint64, uint64, uint64, string) (driver.ObjFile, error) {
	return nil, errNoObjects
}

func (noObjects) Disasm(string, uint64, uint64, bool) ([]driver.Inst, error) {
	return nil, errNoObjects
}

// quiet keeps the driver off the terminal.
type quiet struct{ errors []string }

func (*quiet) ReadLine(string) (string, error)     { return "", errors.New("nobody is there") }
func (*quiet) Print(...interface{})                {}
func (q *quiet) PrintErr(args ...interface{})      { q.errors = append(q.errors, fmt.Sprint(args...)) }
func (*quiet) IsTerminal() bool                    { return false }
func (*quiet) WantBrowser() bool                   { return false }
func (*quiet) SetAutoComplete(func(string) string) {}

// recorder keeps a page. httptest's would add its flags to every program that writes files.
type recorder struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}
