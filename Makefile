# The two commands a newcomer needs are `make run` and `make test`; `make help` lists the rest.

.DEFAULT_GOAL := help
.PHONY: help run install deb test test-all setup lint deny build unit crash clients guest soak fuzz bench bench-quick clean

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: ## Build, serve ./unstun-data, run the demo; the daemon stays up until Ctrl-C
	@scripts/run.sh

install: ## Binary, man pages, completions, systemd unit (PREFIX, DESTDIR)
	@scripts/install.sh

deb: ## A Debian package under target/debian
	@scripts/deb.sh

test: ## Install what is missing, then lint, build and unit; then clients, guest and crash side by side
	@scripts/test.sh

test-all: ## The same with longer campaigns: HOSTILE_FOLDERS (5000), CRASH_CUTS (100000), UNSTUN_KILL_CYCLES (30)
	@scripts/test-all.sh

setup: ## Install the programs the tests use
	@scripts/test.sh setup

lint: ## rustfmt and clippy, warnings as errors; with LINT_DOCS=1 rustdoc too
	@scripts/test.sh lint

deny: ## Licences, sources and duplicates of the dependencies, if cargo-deny is installed
	@scripts/deny.sh

build: ## The one build that every other stage uses
	@scripts/test.sh build

unit: ## Unit, property and repository tests
	@scripts/test.sh unit

crash: ## Power cuts in virtual time
	@scripts/test.sh crash

clients: ## Real clients: qemu-img, qemu-io, nbdinfo, nbdcopy, fio, a browser
	@scripts/test.sh clients

guest: ## A Linux guest under QEMU: what it feels of a take and a commit, a hard reset, a revert
	@scripts/test.sh guest

soak: ## A million power cuts (CRASH_CUTS), then kill -9 cycles for an hour (SOAK_MINUTES)
	@scripts/soak.sh

fuzz: ## Hostile bytes for every parser: libFuzzer if installed, else properties (FUZZ_MINUTES, 10)
	@scripts/fuzz.sh

bench: ## The figures, beside their peers, in about 90 minutes
	@scripts/bench.sh

bench-quick: ## The same with few rounds, in about 17 minutes
	@scripts/bench.sh --quick

clean: ## Remove what was built; datastores stay
	cargo clean
