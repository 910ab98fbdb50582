#!/usr/bin/env bash
# Feeds hostile bytes to the parsers until the time is up: libFuzzer over fuzz/ where cargo-fuzz and a nightly compiler
# are installed, else the property tests, round after round with fresh random input.
# A failure prints how to replay it; libFuzzer keeps the input in fuzz/artifacts, proptest its seed beside the test.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
minutes=${FUZZ_MINUTES:-10}

# Target and the room that keeps its corpus; what is found on the way stays in fuzz/corpus.
TARGETS=(descriptor:vmdk vmfssparse:vmdk sesparse:vmdk hosted:vmdk stream:vmdk ova:vmdk vmsd:vmdk vmx:vmdk negotiate:export transmit:export nbd_client:export vhost_user:export rest_body:unstun import:lab)

coverage_guided() {
    local pair target
    cargo +nightly fuzz build
    for pair in "${TARGETS[@]}"; do
        target=${pair%%:*}
        mkdir -p "fuzz/corpus/$target"
        cargo +nightly fuzz run "$target" "fuzz/corpus/$target" "crates/${pair##*:}/fuzz-corpus/$target" -- \
            -max_total_time=$((minutes * 60 / ${#TARGETS[@]})) -timeout=10 -malloc_limit_mb=64 -print_final_stats=1
    done
    echo "${#TARGETS[@]} targets in $SECONDS s, nothing found"
}

properties() {
    local rounds=0
    scripts/setup.sh test
    cargo test --release --locked --workspace --no-run
    export PROPTEST_CASES=${PROPTEST_CASES:-20000}
    while ((SECONDS < minutes * 60)); do
        # Descriptors, tables of deltas, .vmx and .vmsd, whole folders, imports; then NBD negotiation and transmission.
        cargo test --quiet --release --locked --workspace --lib -- check cowd descriptor hosted import keyvalue ova sesparse stream vmfssparse vmsd vmx
        cargo test --quiet --release --locked --workspace --test integration -- hostile_bytes
        cargo test --quiet --release --locked -p export --test vhost_user -- bytes
        rounds=$((rounds + 1))
    done
    echo "$rounds rounds of $PROPTEST_CASES cases in $SECONDS s, nothing found"
}

if cargo +nightly fuzz --version >/dev/null 2>&1; then
    echo "fuzz: coverage-guided, with $(cargo +nightly fuzz --version)"
    coverage_guided
else
    echo "fuzz: property tests; for coverage-guided runs: rustup toolchain install nightly && cargo install cargo-fuzz"
    properties
fi
