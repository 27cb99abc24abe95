GO      ?= $(shell command -v go 2>/dev/null || echo /usr/local/go/bin/go)
PREFIX  ?= /usr/local
DESTDIR ?=

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null)
COMMIT  ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# The objects in bpf/ are compared byte by byte with what is generated, and
# another clang generates other bytes. Debian 12 has this one.
CLANG_MAJOR := 14

GOLANGCI_VERSION := 2.15.0

.DEFAULT_GOAL := build

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.PHONY: build
build: ## Build ./sockwatch, one static binary; needs Go, no clang
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o sockwatch ./cmd/sockwatch

.PHONY: generate
generate: ## Compile bpf/*.c and generate bpf/*.go; needs clang 14 and libbpf-dev
	@clang --version 2>/dev/null | grep -q 'version $(CLANG_MAJOR)\.' || { \
		echo 'make generate needs clang $(CLANG_MAJOR) (apt install clang llvm libbpf-dev on Debian 12): another version makes other objects' >&2; exit 1; }
	$(GO) generate ./bpf

.PHONY: test
test: ## Run every test; needs root, installs what is missing (apt)
	@test "$$(id -u)" -eq 0 || { \
		echo 'make test needs root, to make network namespaces and to load BPF programs: sudo make test' >&2; \
		echo '($(GO) test ./... runs what needs none)' >&2; exit 1; }
	@hack/install-deps.sh test
	@# One package at a time: several time the kernel against packets.
	$(GO) test -race -count=1 -p 1 -timeout 15m $(TESTFLAGS) ./...

.PHONY: test-kernels
test-kernels: ## Run the tests on kernels from 5.10 on, in qemu; takes 15 minutes, KERNELS=5.10,6.12 fewer
	@hack/install-deps.sh kernels
	$(GO) run ./hack/kernels $(if $(KERNELS),-kernels $(KERNELS)) $(KERNELSFLAGS)

.PHONY: lint
lint: ## Check style: golangci-lint and clang-format
	@golangci-lint version 2>/dev/null | grep -q 'version v\?$(GOLANGCI_VERSION)' || { \
		echo 'make lint needs golangci-lint $(GOLANGCI_VERSION): hack/install-deps.sh lint' >&2; exit 1; }
	golangci-lint run --allow-parallel-runners ./...
	clang-format --dry-run -Werror bpf/*.c bpf/*.h

.PHONY: fmt
fmt: ## Format Go and C
	golangci-lint fmt ./...
	clang-format -i bpf/*.c bpf/*.h

.PHONY: bench
bench: ## Run the benchmarks; needs root
	@test "$$(id -u)" -eq 0 || { echo 'make bench needs root: sudo make bench' >&2; exit 1; }
	@hack/install-deps.sh test
	$(GO) test -run '^$$' -bench . -benchmem -timeout 15m $(BENCHFLAGS) ./...

.PHONY: demo
demo: ## Watch a link that is cut and healed, then run an experiment; needs root, takes two minutes
	@hack/demo.sh

.PHONY: man
man: ## Write the manual pages to dist/man
	$(GO) run -tags man -ldflags '$(LDFLAGS)' ./cmd/sockwatch man dist/man

.PHONY: install
install: build man ## Install to $(PREFIX): binary, manual pages, completions
	install -D -m 0755 sockwatch $(DESTDIR)$(PREFIX)/bin/sockwatch
	install -d $(DESTDIR)$(PREFIX)/share/man/man8
	install -m 0644 dist/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
	install -d $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	./sockwatch completion bash > $(DESTDIR)$(PREFIX)/share/bash-completion/completions/sockwatch
	./sockwatch completion zsh > $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_sockwatch
	./sockwatch completion fish > $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/sockwatch.fish

.PHONY: clean
clean: ## Remove what was built
	rm -rf sockwatch dist
