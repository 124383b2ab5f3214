// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// tool is a command of the module deploy/tools.
func tool(t *testing.T, name string, args ...string) *exec.Cmd {
	t.Helper()
	run := func(args ...string) *exec.Cmd {
		cmd := exec.Command("go", append([]string{"tool"}, args...)...)
		cmd.Dir, cmd.Env = "tools", append(os.Environ(), "GOFLAGS=", "GOWORK=off")
		return cmd
	}
	if out, err := run("-n", name).CombinedOutput(); err != nil {
		t.Skipf("%s cannot be built here: %v\n%s", name, err, out)
	}
	return run(append([]string{name}, args...)...)
}

// kustomized is what kustomize makes of a folder.
func kustomized(t *testing.T, dir string) []byte {
	t.Helper()
	abs, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	cmd := tool(t, "kustomize", "build", abs)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("building %s: %v\n%s", dir, err, stderr.Bytes())
	}
	return out
}

func objects(t *testing.T, dir string) []map[string]any {
	t.Helper()
	var docs []map[string]any
	for dec := yaml.NewDecoder(bytes.NewReader(kustomized(t, dir))); ; {
		var doc map[string]any
		if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
			return docs
		} else if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, doc)
	}
}

// at follows keys, and gives nil where one is missing.
func at(v any, keys ...string) any {
	for _, k := range keys {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[k]
	}
	return v
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func read(t *testing.T, path ...string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var variable = regexp.MustCompile(`\$\{env:([A-Z_]+)`)

// strict says what Kubernetes' own types do not know of the objects.
func strict(t *testing.T, objects []byte) (string, error) {
	t.Helper()
	cmd := tool(t, "strict")
	cmd.Stdin = bytes.NewReader(objects)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func TestKubernetesKnowsEveryField(t *testing.T) {
	for _, dir := range []string{"kubernetes/base", "kubernetes/example"} {
		built := kustomized(t, dir)
		if out, err := strict(t, built); err != nil {
			t.Errorf("%s: %v\n%s", dir, err, out)
		}
		for _, wrong := range []struct{ was, is, want string }{
			{"replicas: 1", "replica: 1", `unknown field "spec.replica"`},
			{"replicas: 1", "replicas: one", "replicas"},
			{"kind: DaemonSet", "kind: DemonSet", "DemonSet"},
		} {
			broken := bytes.Replace(built, []byte(wrong.was), []byte(wrong.is), 1)
			if out, err := strict(t, broken); err == nil || !strings.Contains(out, wrong.want) {
				t.Errorf("%s with %q: %v, %s, want %q", dir, wrong.is, err, out, wrong.want)
			}
		}
	}
}

func TestKubernetesIsOfOnePiece(t *testing.T) {
	docs := objects(t, "kubernetes/example")
	configMaps := map[string]map[string]any{}
	var pods []map[string]any
	kinds := map[string]int{}
	for _, d := range docs {
		kind, name := text(d["kind"]), text(at(d, "metadata", "name"))
		kinds[kind]++
		if ns := text(at(d, "metadata", "namespace")); kind != "Namespace" && ns != "heapwire" {
			t.Errorf("%s %s: namespace %q", kind, name, ns)
		}
		switch kind {
		case "ConfigMap":
			configMaps[name], _ = at(d, "data").(map[string]any)
		case "DaemonSet", "Deployment", "Job":
			pod, _ := at(d, "spec", "template", "spec").(map[string]any)
			pods = append(pods, pod)
		}
	}
	for _, want := range []string{"Namespace", "DaemonSet", "Deployment", "Service", "Job"} {
		if kinds[want] != 1 {
			t.Errorf("%d of %s", kinds[want], want)
		}
	}
	for _, pod := range pods {
		volumes := map[string]any{}
		for _, v := range list(pod["volumes"]) {
			volumes[text(at(v, "name"))] = v
		}
		for _, c := range append(list(pod["containers"]), list(pod["initContainers"])...) {
			name := text(at(c, "name"))
			for _, m := range list(at(c, "volumeMounts")) {
				if volumes[text(at(m, "name"))] == nil {
					t.Errorf("container %s mounts %s, which is no volume", name, text(at(m, "name")))
				}
			}
			ports := map[string]bool{}
			for _, p := range list(at(c, "ports")) {
				ports[text(at(p, "name"))] = true
			}
			for _, probe := range []string{"livenessProbe", "readinessProbe"} {
				if port := text(at(c, probe, "httpGet", "port")); port != "" && !ports[port] {
					t.Errorf("container %s: %s asks port %s, which it does not name", name, probe, port)
				}
			}
			if name == "collector" {
				collector(t, c, volumes, configMaps)
			}
		}
	}
}

// collector checks that a container's arguments name a file that its volume has, and its variables those that the file reads.
func collector(t *testing.T, container any, volumes map[string]any, configMaps map[string]map[string]any) {
	t.Helper()
	var args []string
	for _, a := range list(at(container, "args")) {
		args = append(args, text(a))
	}
	config := filepath.Base(args[slices.Index(args, "--config")+1])
	file := text(configMaps[text(at(volumes["config"], "configMap", "name"))][config])
	if want := read(t, "..", "otelcol", "distribution", "config", config); file != want {
		t.Errorf("%s is not the one of otelcol/distribution/config: copy it again", config)
	}
	if !slices.Contains(args, "--feature-gates=service.profilesSupport") {
		t.Errorf("%s: without the gate a pipeline of profiles does not start: %q", config, args)
	}
	known := []string{"GOMEMLIMIT"}
	for _, m := range variable.FindAllStringSubmatch(file, -1) {
		known = append(known, m[1])
	}
	for _, e := range list(at(container, "env")) {
		if name := text(at(e, "name")); !slices.Contains(known, name) {
			t.Errorf("%s: the variable %s is read by nobody", config, name)
		}
	}
}

func TestComposeIsOfOnePiece(t *testing.T) {
	var compose map[string]any
	if err := yaml.Unmarshal([]byte(read(t, "compose", "compose.yaml")), &compose); err != nil {
		t.Fatal(err)
	}
	services, _ := compose["services"].(map[string]any)
	address := regexp.MustCompile(`^(?:https?://)?([a-z]+):[0-9]+`)
	for name, s := range services {
		for _, v := range list(at(s, "volumes")) {
			from, _, _ := strings.Cut(text(v), ":")
			if strings.HasPrefix(from, ".") {
				if _, err := os.Stat(filepath.Join("compose", from)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			} else if _, ok := at(compose, "volumes").(map[string]any)[from]; !ok {
				t.Errorf("%s: no volume %s", name, from)
			}
		}
		env, _ := at(s, "environment").(map[string]any)
		for k, v := range env {
			if m := address.FindStringSubmatch(text(v)); m != nil && services[m[1]] == nil {
				t.Errorf("%s: %s=%s: no service %s", name, k, text(v), m[1])
			}
		}
		var args []string
		for _, a := range list(at(s, "command")) {
			args = append(args, text(a))
		}
		if i := slices.Index(args, "--config"); i >= 0 {
			file := read(t, "..", "otelcol", "distribution", "config", filepath.Base(args[i+1]))
			for k := range env {
				if !strings.Contains(file, "${env:"+k) {
					t.Errorf("%s: the variable %s is read by nobody", name, k)
				}
			}
		}
	}
	for _, file := range []string{"prometheus.yaml", "grafana/datasources.yaml", "grafana/dashboards.yaml"} {
		var any map[string]any
		if err := yaml.Unmarshal([]byte(read(t, "compose", file)), &any); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}
