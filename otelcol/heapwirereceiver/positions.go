// SPDX-License-Identifier: Apache-2.0

package heapwirereceiver

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"sync"

	"go.opentelemetry.io/collector/extension/xextension/storage"
	"go.opentelemetry.io/collector/pdata/plog"
)

// maxPositions bounds what is remembered of a folder; the oldest goes.
const maxPositions = 1 << 14

// positions remember in a storage extension what of a folder of snapshots was delivered, for folders that cannot be written
// to. The folder's own note is asked first, by the pipeline. A nil *positions remembers nothing.
type positions struct {
	client storage.Client
	key    string

	mu    sync.Mutex
	known map[string]bool
	order []string
}

func openPositions(ctx context.Context, client storage.Client, folder string) (*positions, error) {
	if client == nil {
		return nil, nil
	}
	p := &positions{client: client, key: "snapshots " + folder, known: map[string]bool{}}
	text, err := client.Get(ctx, p.key)
	if err == nil && text != nil {
		err = json.Unmarshal(text, &p.order)
	}
	if err != nil {
		return p, fmt.Errorf("reading what was delivered of %s from the storage: %w", folder, err)
	}
	for _, id := range p.order {
		p.known[id] = true
	}
	return p, nil
}

// position names a part of a snapshot: its profile's id is that of the file's version, view and device.
func position(signal string, id [16]byte) string { return fmt.Sprintf("%s:%x", signal, id) }

func eventPosition(logs plog.Logs) string {
	r := logs.ResourceLogs().At(0).ScopeLogs().At(0).LogRecords().At(0)
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s %v", r.EventName(), r.Timestamp(), r.Body().Str(), r.Attributes().AsRaw()))
	return fmt.Sprintf("log:%x", sum[:16])
}

// once delivers what was not delivered before, and remembers it.
func (p *positions) once(ctx context.Context, id string, deliver func() error) error {
	if p == nil {
		return deliver()
	}
	p.mu.Lock()
	known := p.known[id]
	p.mu.Unlock()
	if known {
		return nil
	}
	if err := deliver(); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known[id] = true
	p.order = append(p.order, id)
	if over := len(p.order) - maxPositions; over > 0 {
		for _, old := range p.order[:over] {
			delete(p.known, old)
		}
		p.order = append([]string(nil), p.order[over:]...)
	}
	text, err := json.Marshal(p.order)
	if err != nil {
		return err
	}
	// What was delivered is delivered: a storage that fails costs a repeat after the next start.
	_ = p.client.Set(ctx, p.key, text)
	return nil
}
