// SPDX-License-Identifier: Apache-2.0

package telemetry

import (
	"errors"
	"fmt"
	"time"

	"github.com/grafana/pyroscope-go"

	push "github.com/heapwire/heapwire/exporter/pyroscope"
)

// StartProfile pushes this program's own Go profile to the server that the variables of Pyroscope name, every 15 s until
// stop is called, which waits a second at most.
func StartProfile(getenv func(string) string, version string) (stop func(), err error) {
	cfg, enabled, err := push.ConfigFromEnv(getenv)
	if err == nil && !enabled {
		err = errors.New("PYROSCOPE_SERVER_ADDRESS is not set")
	}
	if err != nil {
		return func() {}, fmt.Errorf("profiling ourselves: %w", err)
	}
	headers := map[string]string{}
	for k, v := range cfg.Headers {
		headers[k] = v
	}
	if cfg.AuthToken != "" {
		headers["Authorization"] = "Bearer " + cfg.AuthToken
	}
	profiler, err := pyroscope.Start(pyroscope.Config{
		ApplicationName: serviceName, Tags: map[string]string{"service_version": version}, ServerAddress: cfg.Address,
		BasicAuthUser: cfg.BasicAuthUser, BasicAuthPassword: cfg.BasicAuthPassword, TenantID: cfg.TenantID, HTTPHeaders: headers,
		ProfileTypes: []pyroscope.ProfileType{
			pyroscope.ProfileCPU, pyroscope.ProfileAllocObjects, pyroscope.ProfileAllocSpace, pyroscope.ProfileInuseObjects, pyroscope.ProfileInuseSpace,
		},
	})
	if err != nil {
		return func() {}, fmt.Errorf("profiling ourselves: %w", err)
	}
	return func() {
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			_ = profiler.Stop()
		}()
		select {
		case <-stopped:
		case <-time.After(time.Second):
		}
	}, nil
}
