# `make help` lists what there is to do.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
ifeq ($(origin CC),default)
CC := gcc
endif
BIN := $(CURDIR)/bin
# The static, position-independent jemalloc that goes into the shim; empty: the one the compiler finds.
JEMALLOC_PIC ?=
# A number of inputs: at the end of a time limit go test now and then fails with nothing but "context deadline exceeded".
# FuzzPush has 7000: each of its inputs is read, shaped, split and compressed.
FUZZTIME ?= 20000x
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
# Interpreters for the matrix beside those found in PATH, /usr/bin and $PYENV_ROOT/versions, separated by colons.
HEAPWIRE_PYTHONS ?=

MODULE = $(shell $(GO) list -m)
# Packages with goroutines of their own; under the race detector the parsers take ten times as long for nothing.
RACE := ./exporter/... ./convert/symbol ./otelcol/heapwirereceiver/... ./otelcol/pyroscopeexporter/...

# shim/inproc/doc.go says why.
INPROC_LDFLAGS = -s -w -extld=$(CURDIR)/shim/inproc/link -X runtime.godebugDefault=asyncpreemptoff=1,netdns=go -X main.version=$(VERSION)

export CC JEMALLOC_PIC HEAPWIRE_PYTHONS

SHIM_MAKE = $(MAKE) --no-print-directory -C shim BIN=$(BIN) $(if $(JEMALLOC_PIC),JEMALLOC_PIC=$(JEMALLOC_PIC))

.PHONY: help demo test build collector test-collector bench bench-shim bench-snapshot soak soak-shim test-matrix lint clean deps deps-test

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: build ## profile a leaking Python program for some seconds: OTLP receiver, top table, flame graph
	@$(GO) run ./examples/demo -heapwire $(BIN)/heapwire

test: build collector deps-test ## vet, unit tests with the race detector, the shim's tests, every Python found, fuzzing
	$(GO) vet ./...
	$(SHIM_MAKE) test
	$(GO) test -timeout 20m -race $(RACE)
	$(GO) test -timeout 20m $$($(GO) list ./... | grep -vxF -e $(MODULE)/examples $$($(GO) list $(RACE) | sed 's/^/-e /'))
	$(GO) test -count=1 -timeout 15m -parallel 4 -v ./examples | grep -vE '^ *(=== |--- PASS)'
	$(GO) test -run '^$$' -fuzz '^FuzzParse$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./convert/jemalloc
	$(GO) test -run '^$$' -fuzz '^FuzzPickle$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./convert/pickle
	$(GO) test -run '^$$' -fuzz '^FuzzRead$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./convert/otlp
	$(GO) test -run '^$$' -fuzz '^FuzzSnapshot$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./convert/torchmem
	$(GO) test -run '^$$' -fuzz '^FuzzELF$$' -fuzztime $(FUZZTIME) -fuzzminimizetime 10x ./convert/symbol
	$(GO) test -run '^$$' -fuzz '^FuzzPush$$' -fuzztime $(FUZZTIME:20000x=7000x) -fuzzminimizetime 10x ./otelcol/pyroscopeexporter

# Position-independent, so that what is compiled for the command is compiled for the library too.
build: deps ## bin/heapwire, bin/libheapwire.so and bin/libheapwire_inproc.so
	@mkdir -p $(BIN)
	$(SHIM_MAKE)
	$(GO) build -buildmode=pie -trimpath -ldflags '-X main.version=$(VERSION)' -o $(BIN)/heapwire ./exporter/cmd/heapwire
	$(GO) build -buildmode=c-shared -trimpath -ldflags '$(INPROC_LDFLAGS)' -o $(BIN)/libheapwire_inproc.so ./shim/inproc
	@rm -f $(BIN)/libheapwire_inproc.h

# ocb generates build/otelcol from the manifest; what is compiled for the rest of the module is in the cache already.
OCB_VERSION = v0.165.0

collector: ## bin/otelcol-heapwire: an OpenTelemetry Collector with heapwire's receiver and exporter
	@mkdir -p $(BIN) build
	@test -x build/ocb-$(OCB_VERSION) || { GOBIN=$(CURDIR)/build $(GO) install go.opentelemetry.io/collector/cmd/builder@$(OCB_VERSION) && mv build/builder build/ocb-$(OCB_VERSION); }
	build/ocb-$(OCB_VERSION) --config otelcol/distribution/manifest.yaml --skip-compilation 2>build/ocb.log || { cat build/ocb.log >&2; exit 1; }
	cd build/otelcol && $(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/otelcol-heapwire .

test-collector: build collector ## the Collector from job to Pyroscope: kills, outages, 200 processes, a snapshot of 1 GB; minutes, and 6 GB of memory
	HEAPWIRE_COLLECTOR=1 $(GO) test -count=1 -timeout 40m -parallel 5 -v ./otelcol/distribution

bench: build ## conversion speed, as the table of docs/performance.md
	$(GO) run ./bench -only convert

bench-shim: build ## the cost for the job beside other profilers (pip), docs/overhead.svg; half an hour
	$(SHIM_MAKE) test-library
	$(GO) run ./bench -only shim -shim $(BIN)/libheapwire.so -svg docs/overhead.svg

bench-snapshot: build ## device snapshots of 2 MB to 1 GB beside CPython's pickle.load; minutes, and 6 GB of memory
	$(GO) run ./bench/snapshot

soak: build ## delivery in bad weather: killed exporters and jobs, many processes, fork pools; ten minutes
	HEAPWIRE_SOAK=10m $(GO) test -count=1 -timeout 30m -v -run 'Anywhere|ManyProcesses' ./exporter
	HEAPWIRE_SOAK=10m $(GO) test -count=1 -timeout 30m -v -run 'Killed|SameAnswers|UnderALock' ./shim/inproc

soak-shim: build ## every danger of the shim's for many rounds: about ten minutes
	$(SHIM_MAKE) test-library
	HEAPWIRE_SOAK=1 $(GO) test -count=1 -timeout 60m -v -run '^TestSoak$$' ./shim/test

test-matrix: build ## the shim under every Python, CPython's own tests, a newer and an older Debian: hours
	$(SHIM_MAKE) test-library
	HEAPWIRE_MATRIX=1 $(GO) test -count=1 -timeout 180m -v ./shim/test

lint: ## gofmt, go vet, and golangci-lint where it is installed
	@unformatted=$$(git ls-files '*.go' | xargs -r gofmt -l); \
	if [ -n "$$unformatted" ]; then echo "gofmt would change:"; echo "$$unformatted"; exit 1; fi
	$(GO) vet ./...
	@if command -v golangci-lint >/dev/null; then golangci-lint run ./...; else echo "golangci-lint is not installed: its rules were not checked"; fi

clean: ## remove everything that was built or written by the demo
	rm -rf bin build heapwire-out .deps
	if [ -f shim/Makefile ]; then $(SHIM_MAKE) clean; fi

deps: ## install what building needs (apt, as root), or say what is missing; check jemalloc
	@.ci/deps build

deps-test:
	@.ci/deps test
