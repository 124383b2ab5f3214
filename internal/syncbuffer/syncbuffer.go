// SPDX-License-Identifier: Apache-2.0

// Package syncbuffer is for tests that read what a program writes while it still runs.
package syncbuffer

import (
	"bytes"
	"sync"
)

// A Buffer may be written to and read at the same time. The zero value is empty.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write appends p.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String is all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
