// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/heapwire/heapwire/exporter/spool"
)

// TestLastWordsAreInTheSpool ends a process by a panic, its standard error closed: what it said is in the spool, and the next start says
// so.
func TestLastWordsAreInTheSpool(t *testing.T) {
	const variable = "HEAPWIRE_TEST_PANICS_IN"
	if folder := os.Getenv(variable); folder != "" {
		if err := keepLastWords(folder, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		done := make(chan int)
		go panic("nobody hears me")
		<-done
	}
	folder := t.TempDir()
	var said bytes.Buffer
	log := slog.New(slog.NewTextHandler(&said, nil))
	if err := keepLastWords(folder, log); err != nil || said.Len() > 0 {
		t.Fatalf("%v, and nothing has crashed: %s", err, &said)
	}
	name := filepath.Join(folder, spool.LastWords)
	if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	cmd := exec.Command("sh", "-c", `exec "$@" 2>&-`, "sh", os.Args[0], "-test.run", "^TestLastWordsAreInTheSpool$")
	cmd.Env = append(os.Environ(), variable+"="+folder)
	if err := cmd.Run(); err == nil {
		t.Fatal("it did not end by its panic")
	}
	if words, err := os.ReadFile(name); err != nil || !strings.Contains(string(words), "nobody hears me") {
		t.Fatalf("%v: %q", err, words)
	}
	if err := keepLastWords(folder, log); err != nil || !strings.Contains(said.String(), name) {
		t.Fatalf("%v, said %q", err, &said)
	}
}
