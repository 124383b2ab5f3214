// SPDX-License-Identifier: Apache-2.0

package distribution

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/collector/component"
	"go.yaml.in/yaml/v3"

	"github.com/heapwire/heapwire/otelcol/heapwirereceiver"
	"github.com/heapwire/heapwire/otelcol/pyroscopeexporter"
)

// block is a fenced one of a page.
type block struct{ language, text string }

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// blocks gives those below a heading of docs/collector.md.
func blocks(t *testing.T, heading string) (out []block) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "collector.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, below, found := strings.Cut(string(text), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("docs/collector.md has no heading %q", heading)
	}
	below, _, _ = strings.Cut(below, "\n## ")
	for _, m := range fence.FindAllStringSubmatch(below, -1) {
		out = append(out, block{m[1], m[2]})
	}
	return out
}

var numbers = regexp.MustCompile(`\b[0-9]+\b`)

// form is a text with its numbers left out.
func form(text string) []string {
	return strings.Split(numbers.ReplaceAllString(strings.TrimSpace(text), "N"), "\n")
}

// The commands of docs/collector.md print what the page says that they print.
func TestTheCommandsOfThePage(t *testing.T) {
	onlyLong(t)
	found := blocks(t, "On one machine, to look at")
	if len(found) != 2 || found[0].language != "sh" {
		t.Fatalf("want commands and their output, got %d blocks", len(found))
	}
	const folder = "/tmp/heapwire-demo"
	if _, err := os.Stat(folder); err == nil {
		t.Skipf("%s is there already", folder)
	}
	for _, port := range []string{"4317", "4318", "8888", "8889", "13133", "13134"} {
		l, err := net.Listen("tcp", ":"+port)
		if err != nil {
			t.Skipf("the page needs port %s: %v", port, err)
		}
		l.Close()
	}
	// A file, since what is started in the background would hold a pipe.
	stdout, err := os.Create(filepath.Join(t.TempDir(), "stdout"))
	if err != nil {
		t.Fatal(err)
	}
	defer stdout.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", found[0].text)
	cmd.Dir, cmd.Stdout, cmd.Stderr = root, stdout, stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	failed := cmd.Run()
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // where a command left something running
	out, err := os.ReadFile(stdout.Name())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out)
	if failed != nil {
		t.Fatal(failed)
	}
	want, got := form(found[1].text), form(string(out))
	got = got[max(0, len(got)-len(want)):]
	if !slices.Equal(got, want) {
		t.Errorf("the page shows\n%s\nbut they print\n%s", strings.Join(want, "\n"), strings.Join(got, "\n"))
	}
	if _, err := os.Stat(folder); err == nil {
		t.Errorf("they leave %s behind", folder)
	}
}

// The two entries that a stranger copies are those that the distribution itself is built from.
func TestTheEntriesForOnesOwnManifest(t *testing.T) {
	type manifest struct {
		Receivers, Exporters []map[string]string
	}
	var page, own manifest
	found := blocks(t, "In a Collector of your own")
	if len(found) != 1 || found[0].language != "yaml" {
		t.Fatalf("want the entries alone, got %d blocks", len(found))
	}
	if err := yaml.Unmarshal([]byte(found[0].text), &page); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("manifest.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &own); err != nil {
		t.Fatal(err)
	}
	same := func(shown, built []map[string]string) {
		t.Helper()
		if len(shown) != 1 {
			t.Fatalf("%d entries", len(shown))
		}
		module, _, _ := strings.Cut(shown[0]["gomod"], " ")
		at := slices.IndexFunc(built, func(e map[string]string) bool { return e["import"] == shown[0]["import"] })
		if at < 0 || !strings.HasPrefix(built[at]["gomod"], module+" ") {
			t.Errorf("%v is not in manifest.yaml", shown[0])
		}
	}
	same(page.Receivers, own.Receivers)
	same(page.Exporters, own.Exporters)
}

func readme(t *testing.T, component string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", component, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestTheReadmesHaveEveryOptionWithItsDefault(t *testing.T) {
	f := func(name string, cfg component.Config) {
		t.Helper()
		text := readme(t, name)
		v := reflect.ValueOf(cfg).Elem()
		looked := 0
		for i := range v.NumField() {
			key, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("mapstructure"), ",")
			if key == "" {
				continue
			}
			looked++
			row := regexp.MustCompile("(?m)^\\| `" + key + "` \\| (.*?) \\|").FindStringSubmatch(text)
			if row == nil {
				t.Errorf("%s: no row for %s", name, key)
				continue
			}
			said := strings.Trim(row[1], "`")
			if v.Field(i).IsZero() && v.Field(i).Kind() != reflect.Bool {
				if said != "none" && said != "all" {
					t.Errorf("%s: %s has no default, but the row says %s", name, key, said)
				}
				continue
			}
			is := v.Field(i).Interface()
			switch is := is.(type) {
			case time.Duration:
				if d, err := time.ParseDuration(said); err != nil || d != is {
					t.Errorf("%s: %s is %v by default, the row says %s", name, key, is, said)
				}
			case int, int64, bool, string:
				if said != fmt.Sprint(is) {
					t.Errorf("%s: %s is %v by default, the row says %s", name, key, is, said)
				}
			}
		}
		if looked < 10 {
			t.Errorf("%s: %d options", name, looked)
		}
	}
	f("heapwirereceiver", heapwirereceiver.NewFactory().CreateDefaultConfig())
	f("pyroscopeexporter", pyroscopeexporter.NewFactory().CreateDefaultConfig())
}

// families gives the names of the metrics of ours on a collector's page.
func families(page string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^# TYPE ((?:heapwire|otelcol_exporter_pyroscope|otelcol_receiver)_\S+) `).FindAllStringSubmatch(page, -1) {
		names = append(names, m[1])
	}
	return names
}

// documented complains of metrics that a component's README does not name.
func documented(t *testing.T, component, page, prefix string, atLeast int) {
	t.Helper()
	text := strings.ReplaceAll(readme(t, component), ".", "_")
	n := 0
	for _, name := range families(page) {
		if strings.HasPrefix(name, prefix) {
			n++
			if name = strings.TrimSuffix(name, "_total"); !strings.Contains(text, "`"+name+"`") {
				t.Errorf("%s/README.md does not name %s", component, name)
			}
		}
	}
	if n < atLeast {
		t.Errorf("%d metrics %s…, want %d at least", n, prefix, atLeast)
	}
}
