// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/pprof/profile"
)

// Item is one converted dump, or one view of a snapshot, on its way to a back end. A sink shares it with other sinks and must not change it, the
// profile included: Profile's methods Write, Copy and their kin write into it too.
type Item struct {
	Identity Identity

	// Process is the name of the process's folder in the spool, Base the file's stem in it, such as "000003.interval".
	Process, Base string

	// Seq and Reason are those of the file name.
	Seq    uint64
	Reason string

	// Time is when the dump was taken, Duration the time since the previous dump of this process or its start.
	Time     time.Time
	Duration time.Duration

	// Kind says whose memory it is: "host", "cuda", "npu". Device is "" for host memory, else such as "cuda:0".
	// View says which question the profile answers: "live", "peak", "oom", ...
	Kind, Device, View string

	// Profile is never nil. Its sample types are inuse_objects/count and inuse_space/bytes and, where the dump has them,
	// alloc_objects/count and alloc_space/bytes, in any order.
	Profile *profile.Profile

	// ProfileID is [ProfileID] of the fields above.
	ProfileID [16]byte

	// Figures are the numbers of HEAPWIRE_META under the keys that docs/spool.md gives, such as "allocated" or "rss".
	Figures map[string]int64
	// Gauges are figures of a device's allocator that a snapshot has; of the items of a snapshot only the first has them.
	Gauges []Gauge
	// Giants are single huge requests that the dump tells of, a line each: size, call, thread and stack.
	Giants []string
}

// Gauge is a figure of a device, by the name it has as a metric. The unit is UCUM's.
type Gauge struct {
	Name, Unit, Description, Device string
	Value                           int64
}

// Sink is a back end. Export and Close may be called from different goroutines, Export of one sink from one at a time.
type Sink interface {
	// Name says which sink it is in messages and metrics: "otlp", "pyroscope", "file".
	Name() string

	// Export delivers one item. nil means that the back end accepted it. An error for which [IsPermanent] holds must
	// not be tried again; any other may be, not before the Delay of a [*RetryAfterError].
	Export(ctx context.Context, it *Item) error

	// Close frees what the sink holds. It is safe to call more than once.
	Close(ctx context.Context) error
}

// ErrPermanent marks an error that a repeat will not mend. Test with [IsPermanent], make one with [Permanent].
var ErrPermanent = errors.New("permanent")

type permanentError struct{ err error }

func (e *permanentError) Error() string        { return e.err.Error() }
func (e *permanentError) Unwrap() error        { return e.err }
func (e *permanentError) Is(target error) bool { return target == ErrPermanent }

// Permanent marks err as one that a repeat will not mend; the text stays. Permanent(nil) is nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return &permanentError{err}
}

// IsPermanent says whether err or an error it wraps was marked by [Permanent].
func IsPermanent(err error) bool { return errors.Is(err, ErrPermanent) }

// RetryAfterError is a refusal for now: the back end asks not to be called again before Delay has passed.
type RetryAfterError struct {
	Delay time.Duration
	Err   error
}

func (e *RetryAfterError) Error() string {
	return fmt.Sprintf("%v (retry after %v)", e.Err, e.Delay)
}

func (e *RetryAfterError) Unwrap() error { return e.Err }

// ProfileID derives the id of a profile from what makes it unique, so that the same dump sent twice carries the same id
// and a back end can recognise the repeat.
func ProfileID(host string, pid int, startTicks, seq uint64, kind, view string) [16]byte {
	h := sha256.New()
	text := func(s string) {
		_ = binary.Write(h, binary.BigEndian, uint64(len(s)))
		h.Write([]byte(s))
	}
	text(host)
	_ = binary.Write(h, binary.BigEndian, []uint64{uint64(pid), startTicks, seq})
	text(kind)
	text(view)
	var id [16]byte
	copy(id[:], h.Sum(nil))
	return id
}

// PartID derives the id of a part of a profile, the one that begins with its nth sample; part 0 has the profile's own.
func PartID(id [16]byte, n int) [16]byte {
	if n == 0 {
		return id
	}
	h := sha256.New()
	h.Write(id[:])
	_ = binary.Write(h, binary.BigEndian, uint64(n))
	copy(id[:], h.Sum(nil))
	return id
}
