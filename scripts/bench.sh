#!/usr/bin/env bash
# Measures the figures beside their peers: see bench/. Arguments go to the driver (--quick, --only NAME, --help).
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
scripts/setup.sh bench
scripts/setup.sh ceph
cargo build --release --locked --package unstun --package lab
cargo build --release --locked --package export --example vhostload
export PYTHONDONTWRITEBYTECODE=1
exec python3 -m bench --binary "${CARGO_TARGET_DIR:-target}/release/unstun" "$@"
