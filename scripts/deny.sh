#!/usr/bin/env bash
# Checks licences, sources and duplicates of the dependencies by deny.toml. Needs cargo-deny, which setup does not install.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

if ! command -v cargo-deny >/dev/null; then
    echo "deny: nothing was checked: cargo-deny is not installed (cargo install --locked cargo-deny)" >&2
    exit 1
fi
cargo deny --locked check bans licenses sources
