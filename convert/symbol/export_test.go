// SPDX-License-Identifier: Apache-2.0

package symbol

import "io"

// ParseELF looks offsets up in one file, past the cache.
func ParseELF(r io.ReaderAt, buildID string, offsets []uint64) (map[uint64]string, error) {
	f := file{names: map[uint64]string{}, vaddrs: map[uint64]uint64{}}
	err := f.parse(r, buildID, offsets)
	return f.names, err
}
