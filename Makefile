# What a fresh machine needs: Go 1.26, make, git, curl and, for the browser test and KafkaJS, Node 20 with npm. `make test` installs
# the rest by apt and npm, only what is missing.
# CI calls these targets and nothing else.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
BIN := $(CURDIR)/bin
LEAT := $(BIN)/leat

# The linter is one binary for all linters and for the formatter. Another version finds other things, so it is pinned.
LINT_VERSION := 2.15.0
LINT := $(BIN)/golangci-lint

BROWSER := $(CURDIR)/e2e/browser
# A module of its own, see its package comment. Its go.mod is not checked by `go mod tidy`, which would fetch what the
# tests of its one dependency import; `go vet` fails when anything is missing in it.
LIBRDKAFKA := $(CURDIR)/e2e/conformance/librdkafka
# npm writes this file when it has installed what package-lock.json says.
BROWSER_MODULES := $(BROWSER)/node_modules/.package-lock.json
KAFKAJS := $(CURDIR)/e2e/conformance/kafkajs
KAFKAJS_MODULES := $(KAFKAJS)/node_modules/.package-lock.json

# Where unit tests live: everything but the tests that run the binary.
PACKAGES = $$(go list ./... | grep -v '^leat/e2e')
# Tests of memory, or of very many cases, which skip themselves under the race detector.
UNRACED := TestFetchPathAllocations|TestIdleMemory|TestKeysMemory|TestRewriteAllocates|TestCheckFlips|TestCrashEverywhere|TestCrashTwice|TestDamagedIndex|TestFindFlip|TestFindTimeMemory|TestFlippedHeader|TestFlips|TestFlipsAreNotRead|TestOptionsChangeNoAnswer|TestSwapCrash|TestTornAtEveryByte|TestTruncate|TestTruncateCrash
# Tests that make sim runs: the race detector draws them out, and finds nothing in one goroutine.
SIMULATED := TestExplore|TestExploreWhole|TestReductionLosesNothing|TestBreakages
# CI proves every time what it says, also when nothing changed.
UNCACHED := $(if $(CI),-count=1)
FUZZTIME ?= 10s
SEEDS ?= 2000
RECORDS ?= 4
SOAK ?= 10m
FRAMES ?= 10m
KILLS ?= 500
CHURN ?= 10m
HTTPFUZZ ?= 2m

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build run check fmt test unit sim explore breakages e2e clients conformance bench fuzz frames soak chaos clean lint-tool c-compiler test-tools conformance-tools

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## (.*)/\1|\2/' | while IFS='|' read -r target words; do printf '  %-11s %s\n' "$$target" "$$words"; done

build: ## Build the static binary bin/leat; needs only Go
	@echo "build: bin/leat $(VERSION)"
	@CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags='-w -X main.version=$(VERSION)' -o $(LEAT) .

run: build ## Build, then run the server on its defaults until Ctrl-C
	@exec $(LEAT) serve

check: lint-tool c-compiler ## Format, vet, lint, layers and module files; changes nothing
	@echo "check: format"
	@$(LINT) fmt --diff ./...
	@echo "check: go vet"
	@go vet ./...
	@cd $(LIBRDKAFKA) && CGO_ENABLED=1 go vet ./...
	@echo "check: lint"
	@$(LINT) run ./...
	@cd $(LIBRDKAFKA) && CGO_ENABLED=1 $(LINT) run ./...
	@echo "check: layers"
	@go test -count=1 -run '^(TestLayers|TestForbidden)$$' .
	@echo "check: go.mod and go.sum"
	@go mod tidy -diff
	@go mod verify
	@cd $(LIBRDKAFKA) && go mod verify

fmt: lint-tool ## Format every Go file
	@$(LINT) fmt ./...

test: test-tools unit sim e2e clients ## All tests: unit tests with the race detector, simulated clusters, then the binary from outside

unit: test-tools ## Only the unit tests
	@echo "test: unit tests with the race detector"
	@CGO_ENABLED=1 go test -race -timeout 15m $(UNCACHED) -skip '^($(SIMULATED))$$' $(PACKAGES)
	@echo "test: what the race detector would distort or draw out"
	@go test -timeout 5m $(UNCACHED) -run '^($(UNRACED))$$' ./api/kafka ./api/ws ./storage ./storage/record

# Each seed is a cluster with lossy networks and crashing disks; a seed that fails says how to run it again, and is written to
# broker/sim/testdata/seeds, which every run begins with. Commit it with the fix.
sim: ## Simulated clusters, one a seed, and what they covered (SEEDS=2000)
	@echo "test: simulated clusters"
	@LEAT_SEEDS=$(SEEDS) go test -count=1 -timeout 0 -v -run '^TestSim$$' ./broker/sim/
	@echo "test: every state of three replicas, within limits; and some rules broken on purpose"
	@go test -count=1 -timeout 15m -v -run '^($(SIMULATED))$$' ./broker/sim/

# `make sim` goes through those with 2 records, and through slices with more of other things. A state takes about 30 bytes.
explore: ## Every state of three replicas with few records and any number of elections (RECORDS=4); takes minutes
	@LEAT_EXPLORE=$(RECORDS) GOGC=200 go test -count=1 -timeout 0 -v -run '^TestExploreWhole$$' ./broker/sim/

breakages: ## Every rule of replication that a simulation guards, broken on purpose: each must be caught
	@LEAT_BREAKAGES=all go test -count=1 -timeout 0 -v -run '^TestBreakages$$' ./broker/sim/

e2e: build test-tools ## Only the tests that run the binary
	@echo "test: the binary from outside"
	@LEAT_BIN=$(LEAT) go test -count=1 -timeout 20m ./e2e/

clients: build test-tools ## Only the Kafka clients of others, the quick ones
	@echo "test: Kafka clients"
	@LEAT_BIN=$(LEAT) go test -count=1 -timeout 10m -skip '^TestSchemathesis$$' ./e2e/conformance/

conformance: build test-tools conformance-tools ## All Kafka clients of others, and requests made up from openapi.yaml (HTTPFUZZ=2m); writes api/kafka/CLIENTS.md
	@LEAT_LONG=1 LEAT_HTTP_FUZZ=$(HTTPFUZZ) LEAT_BIN=$(LEAT) go test -count=1 -timeout 60m -v ./e2e/conformance/

bench: build ## Benchmarks of the binary against bare loops; takes minutes
	@LEAT_BIN=$(LEAT) go test -count=1 -timeout 60m -run '^$$' -bench . ./e2e/bench/
	@go test -count=1 -timeout 60m -run '^$$' -bench 'Compact$$' -benchtime 1x ./storage/

fuzz: ## Every fuzz target for a short while (FUZZTIME=10s)
	@for package in $(PACKAGES); do \
		targets=$$(go test -list '^Fuzz' "$$package" | grep '^Fuzz' || true); \
		for target in $$targets; do \
			echo "fuzz: $$package $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package"; \
		done; \
	done

# `make test` has 5 s of it with a fixed seed; here each run has another, which it says, and LEAT_SEED repeats one.
frames: build ## Spoiled frames of every API at the Kafka door of the binary for a long while (FRAMES=10m)
	@LEAT_FRAMES=$(FRAMES) LEAT_BIN=$(LEAT) go test -count=1 -timeout 0 -v -run '^TestFuzzedFrames$$' ./e2e/

# A failing seed is written to testdata/seeds of its package, which CI runs every time. Commit it with the fix.
soak: ## New random seeds of the crash tests for a long while (SOAK=10m)
	@mkdir -p $(BIN)
	@pids=(); failed=0; \
	for package in storage broker; do \
		go test -c -o "$(BIN)/soak-$$package" "./$$package"; \
		(cd "$$package" && LEAT_SOAK=$(SOAK) exec "$(BIN)/soak-$$package" -test.v -test.timeout 0 -test.run '^TestSoak$$') & pids+=($$!); \
	done; \
	for pid in "$${pids[@]}"; do wait "$$pid" || failed=1; done; \
	exit $$failed

chaos: build ## kill -9 under load over all doors (KILLS=500), then groups that lose members and servers (CHURN=10m)
	@LEAT_KILLS=$(KILLS) LEAT_CHURN=$(CHURN) LEAT_BIN=$(LEAT) go test -count=1 -timeout 0 -v -run '^(TestKillLoop|TestGroupChurn)$$' ./e2e/

clean: ## Remove what was built
	@rm -rf $(BIN) $(BROWSER)/node_modules $(CURDIR)/e2e/conformance/*/node_modules

# A linter of the right version on the PATH is as good as our own.
lint-tool:
	@have() { [ -x "$$1" ] && [ "$$("$$1" version --short 2>/dev/null)" = "$(LINT_VERSION)" ]; }; \
	if ! have $(LINT); then \
		mkdir -p $(BIN); \
		other=$$(command -v golangci-lint || true); \
		if [ -n "$$other" ] && have "$$other"; then \
			ln -sf "$$other" $(LINT); \
		else \
			echo "check: building golangci-lint $(LINT_VERSION) into bin/ (once, some minutes)"; \
			rm -f $(LINT); \
			GOFLAGS= GOBIN=$(BIN) CGO_ENABLED=0 go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v$(LINT_VERSION); \
		fi; \
	fi

# What installs Debian's packages; their names follow.
APT_INSTALL = root=(); [ "$$(id -u)" = 0 ] || root=(sudo -n); "$${root[@]}" apt-get update -qq; \
	"$${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends

# gcc and the C headers are for the race detector and for librdkafka.
c-compiler:
	@if ! printf '#include <stdlib.h>\n' | gcc -E - >/dev/null 2>&1; then \
		echo "installing gcc libc6-dev"; \
		$(APT_INSTALL) gcc libc6-dev >/dev/null; \
	fi

# kcat, strace and a browser are for tests from outside. The browser test and KafkaJS need Node 20: without it they are
# skipped, in CI they fail.
test-tools: c-compiler $(BIN)/promtool
	@missing=(); \
	command -v kcat >/dev/null || missing+=(kcat); \
	command -v strace >/dev/null || missing+=(strace); \
	node=$$(node --version 2>/dev/null || true); node=$${node#v}; node=$${node%%.*}; \
	if [ "$${node:-0}" -ge 20 ] && command -v npm >/dev/null; then \
		command -v chromium >/dev/null || command -v google-chrome >/dev/null || missing+=(chromium); \
	else \
		node=; echo "test: no Node 20 with npm, so neither the browser test nor KafkaJS"; \
	fi; \
	if [ "$${#missing[@]}" -gt 0 ]; then \
		echo "test: installing $${missing[*]}"; \
		$(APT_INSTALL) "$${missing[@]}" >/dev/null; \
	fi; \
	[ -z "$$node" ] || $(MAKE) -s $(BROWSER_MODULES) $(KAFKAJS_MODULES)

# What the clients outside Go run on. One that cannot be had does not keep the others from running: the table then says
# what its installation said last.
CONFORMANCE := $(CURDIR)/e2e/conformance
INSTALLED := $(BIN)/conformance

conformance-tools:
	@mkdir -p $(INSTALLED)
	@missing=(); \
	java=$$(java --version 2>/dev/null || true); java=$${java#* }; java=$${java%%.*}; \
	[ "$${java:-0}" -ge 17 ] || missing+=(openjdk-17-jre-headless); \
	command -v mvn >/dev/null || missing+=(maven); \
	python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3 python3-venv); \
	if [ "$${#missing[@]}" -gt 0 ]; then \
		echo "conformance: installing $${missing[*]}"; \
		{ $(APT_INSTALL) "$${missing[@]}" >/dev/null; } || echo "conformance: apt-get failed"; \
	fi
	@for part in platformatic python schemathesis java; do \
		log=$(INSTALLED)/$$part.log; \
		if $(MAKE) -s $(INSTALLED)/$$part.done >"$$log" 2>&1; then rm "$$log"; else rm -f $(INSTALLED)/$$part.done; echo "conformance: no $$part"; tail -n 5 "$$log"; fi; \
	done

$(INSTALLED)/platformatic.done: $(CONFORMANCE)/platformatic/package.json $(CONFORMANCE)/platformatic/package-lock.json
	@cd $(CONFORMANCE)/platformatic && npm ci --no-audit --no-fund --loglevel=error
	@touch $@

$(INSTALLED)/python.done: $(CONFORMANCE)/python/requirements.txt
	@rm -rf $(INSTALLED)/python && python3 -m venv $(INSTALLED)/python
	@$(INSTALLED)/python/bin/pip install -q --disable-pip-version-check --no-deps -r $<
	@touch $@

$(INSTALLED)/schemathesis.done: $(CONFORMANCE)/schemathesis/requirements.txt
	@rm -rf $(INSTALLED)/schemathesis && python3 -m venv $(INSTALLED)/schemathesis
	@$(INSTALLED)/schemathesis/bin/pip install -q --disable-pip-version-check --no-deps -r $<
	@touch $@

# ecj, a compiler for which a JRE is enough, is one of the dependencies.
$(INSTALLED)/java.done: $(CONFORMANCE)/java/pom.xml $(CONFORMANCE)/java/connect.xml $(CONFORMANCE)/java/Drive.java
	@rm -rf $(INSTALLED)/java
	@mvn -q -B -f $(CONFORMANCE)/java/pom.xml dependency:copy-dependencies -DoutputDirectory=$(INSTALLED)/java/lib
	@mvn -q -B -f $(CONFORMANCE)/java/connect.xml dependency:copy-dependencies -DoutputDirectory=$(INSTALLED)/java/connect
	@cd $(INSTALLED)/java && java -jar lib/ecj-*.jar -17 -nowarn -proc:none -cp "$$(printf '%s:' lib/*.jar)" -d classes $(CONFORMANCE)/java/Drive.java
	@touch $@

$(BROWSER_MODULES) $(KAFKAJS_MODULES): %/node_modules/.package-lock.json: %/package.json %/package-lock.json
	@echo "test: npm ci in $(patsubst $(CURDIR)/%,%,$*)"
	@cd $* && npm ci --no-audit --no-fund --loglevel=error >/dev/null
	@touch $@

# promtool checks the alert rules and the names of metrics. It is taken out of Debian's package: installing that would
# start a daemon. One on the PATH is as good.
$(BIN)/promtool:
	@mkdir -p $(BIN)
	@if command -v promtool >/dev/null; then \
		ln -sf "$$(command -v promtool)" $@; \
	elif command -v apt-get >/dev/null; then \
		echo "test: taking promtool out of Debian's package into bin/ (once)"; \
		dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; \
		root=(); [ "$$(id -u)" = 0 ] || root=(sudo -n); \
		cd "$$dir"; get() { apt-get download -qq -o APT::Sandbox::User=root prometheus >/dev/null; }; \
		get 2>/dev/null || { "$${root[@]}" apt-get update -qq; get; }; \
		dpkg-deb --fsys-tarfile prometheus_*.deb | tar -xO ./usr/bin/promtool >promtool; \
		chmod 0755 promtool; ./promtool --version >/dev/null 2>&1; \
		mv "$$dir/promtool" $@; \
	else \
		echo "test: no promtool and no apt, so no check of the alert rules"; \
	fi
