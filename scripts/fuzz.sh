#!/usr/bin/env bash
# Repeats the tests that feed hostile bytes to parsers, each round with fresh random input, until the time is up.
# A failure prints its seed, and proptest writes it beside the test so that `make test` replays it from then on.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
minutes=${FUZZ_MINUTES:-10}

scripts/setup.sh test
cargo test --release --locked --workspace --no-run
export PROPTEST_CASES=${PROPTEST_CASES:-20000}
rounds=0
while ((SECONDS < minutes * 60)); do
    # Descriptors, VMFSsparse tables, .vmx and .vmsd; then NBD negotiation and transmission.
    cargo test --quiet --release --locked --workspace --lib -- cowd descriptor keyvalue vmfssparse vmsd vmx
    cargo test --quiet --release --locked --workspace --test 'hostile*'
    rounds=$((rounds + 1))
done
echo "$rounds rounds of $PROPTEST_CASES cases in $SECONDS s, nothing found"
