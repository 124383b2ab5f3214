// SPDX-License-Identifier: Apache-2.0

package sink_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/exporter/sink"
)

func TestParseProcessJSON(t *testing.T) {
	full := sink.ProcessJSON{
		Schema: 1, Host: "node-7", PID: 42, StartTicks: 7, BootID: "boot-1", StartTimeUnixNano: 5, ParentPID: 1, Executable: "/usr/bin/python3",
		PythonVersion: "3.11.7", ServiceName: "trainer", ResourceAttributes: "a=b", Variables: map[string]string{"RANK": "3"},
		ContainerID: "abc", Forked: true, ShimVersion: "0.1", JemallocVersion: "5.3", SampleBytes: 524288, ExitDump: new(bool),
	}
	text, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	got, err := sink.ParseProcessJSON(text)
	if again, _ := json.Marshal(got); err != nil || string(again) != string(text) {
		t.Errorf("%s, %v; want %s", again, err, text)
	}

	for _, c := range []struct{ name, text, host, errors string }{
		{"unknown keys", `{"schema": 9, "host": "h", "color": {"a": [1]}}`, "h", ""},
		{"null", `{"host": "h", "pid": null}`, "h", ""},
		{"wrong type", `{"host": "h", "pid": "42", "variables": {"RANK": 3}, "forked": "no", "start_ticks": -1, "exit_dump": 0}`, "h",
			`key "exit_dump": want true or false, got 0` + "\n" + `key "forked": want true or false, got "no"` + "\n" + `key "pid": want a whole number, got "42"` + "\n" +
				`key "start_ticks": want a whole number, not negative, got -1` + "\n" + `key "variables": want an object of strings, got {"RANK": 3}`},
		{"half", `{"host": "h", "pi`, "", "byte 17: unexpected end of JSON input"},
		{"not an object", `[1]`, "", "want a JSON object: json: cannot unmarshal array into Go value of type map[string]json.RawMessage"},
		{"empty", ``, "", "byte 0: unexpected end of JSON input"},
		{"long value", `{"host": "h", "pid": "` + strings.Repeat("é", 100) + `"}`, "h", `key "pid": want a whole number, got "` + strings.Repeat("é", 39) + "…"},
	} {
		t.Run(c.name, func(t *testing.T) {
			id, err := sink.ParseProcessJSON([]byte(c.text))
			if id.Host != c.host || id.PID != 0 || id.Variables != nil || id.StartTicks != 0 {
				t.Errorf("identity %+v", id)
			}
			if text := fmt.Sprint(err); text != c.errors && (err != nil || c.errors != "") {
				t.Errorf("error\n%v\nwant\n%s", err, c.errors)
			}
		})
	}
}
