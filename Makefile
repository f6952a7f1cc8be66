# Ringfence. `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# A Go or a Node.js that scripts/install-deps put into .tools goes first.
export PATH := $(CURDIR)/.tools/go/bin:$(CURDIR)/.tools/node/bin:$(PATH)
# -buildvcs=false: git refuses a clone that another user owns; VERSION has what it would say.
# A cgo build of the sandbox cannot start itself inside its own chroot.
export CGO_ENABLED := 0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
GVISOR_COMMIT := $(shell sed -n 's/^.*gvisor.dev\/gvisor v[0-9.]*-[0-9]*-\([0-9a-f]*\).*$$/\1/p' go.mod)
LDFLAGS := -s -w -X main.version=$(VERSION) -X gvisor.dev/gvisor/runsc/version.version=ringfence-$(GVISOR_COMMIT)
GOLANGCI_VERSION := v2.15.0

# Where built templates are kept; shared by the tests and by runs of them.
export RINGFENCE_TEMPLATE_DIR ?= /var/cache/ringfence/templates

GUEST := internal/guestbin/bin/ringfence-guest

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## set up all that is missing and run the two example programs
	@scripts/demo

.PHONY: deps
deps: ## install what building and testing needs (Debian, Ubuntu)
	@scripts/install-deps test

.PHONY: build
build: bin/ringfence ## build the binary, bin/ringfence

# Go's own cache decides what is out of date, so both are always asked.
.PHONY: $(GUEST) bin/ringfence
$(GUEST):
	@mkdir -p $(@D)
	go build -trimpath -buildvcs=false -ldflags "-s -w" -o $@ ./cmd/ringfence-guest
bin/ringfence: $(GUEST)
	@mkdir -p bin
	go build -trimpath -buildvcs=false -ldflags "$(LDFLAGS)" -o $@ ./cmd/ringfence

# Another build, as tests of upgrades need one, which stops where a test wants it to.
.PHONY: bin/ringfence-faults
bin/ringfence-faults: $(GUEST)
	@mkdir -p bin
	go build -trimpath -buildvcs=false -tags faultpoints -ldflags "-s -w -X main.version=faults -X gvisor.dev/gvisor/runsc/version.version=ringfence-faults" -o $@ ./cmd/ringfence

# For scripts/demo: builds templates while the sandbox's kernel is still being compiled.
.PHONY: bin/ringfence-template
bin/ringfence-template:
	@mkdir -p bin
	go build -trimpath -buildvcs=false -ldflags "-s -w" -o $@ ./cmd/ringfence-template

.PHONY: template
template: build ## build the templates that the tests use (reused while their recipes stay the same)
	bin/ringfence template build base
	bin/ringfence template build code-interpreter

.PHONY: test
test: ## all that continuous integration runs
	@scripts/test

.PHONY: unit
unit: $(GUEST) ## the Go tests that need nothing, with the race detector where it matters
	go vet ./...
	scripts/go-test-unit

.PHONY: lint
lint: tools $(GUEST) ## golangci-lint, shellcheck, ruff, pyright and tsc
	@scripts/lint

.PHONY: tools
tools: .tools/bin/golangci-lint
.tools/bin/golangci-lint:
	@mkdir -p $(@D)
	cd / && GOBIN=$(CURDIR)/.tools/bin go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)

.PHONY: soak
soak: build bin/ringfence-faults template ## what takes longer than the tests may: fuzzing, many sandboxes, repeated kills
	@scripts/soak

.PHONY: bench
bench: build template ## measure on this machine and print the README's table
	@scripts/bench

.PHONY: clean
clean: ## remove what was built in this directory (templates stay)
	rm -rf bin demo/out .venv .tools internal/guestbin/bin/ringfence-guest sdk/python/dist sdk/typescript/dist
