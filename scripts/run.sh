#!/usr/bin/env bash
# Builds, serves ./unstun-data, runs the demo against it and keeps its report in ./unstun-demo, and keeps serving until
# Ctrl-C.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin
scripts/setup.sh run

cargo build --release --locked --package unstun --package lab
unstun=${CARGO_TARGET_DIR:-target}/release/unstun
# ./unstun-data, whatever the environment says.
unset UNSTUN_DATASTORE

# In a process group of its own, so that Ctrl-C reaches it through `stop` alone, once.
set -m
"$unstun" up </dev/null &
daemon=$!
set +m

# A second signal goes through too: it ends the draining.
stop() { kill -TERM "$daemon" 2>/dev/null || true; }
trap stop INT TERM HUP

until "$unstun" status >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || { wait "$daemon"; exit; }
    sleep 0.1
done

demo=0
"$unstun" demo --output unstun-demo || demo=$?
if ((demo != 0)); then
    stop
elif kill -0 "$daemon" 2>/dev/null; then
    printf '\nThe daemon serves %s/unstun-data until Ctrl-C.\n' "$PWD"
fi

# `wait` returns early when a trapped signal arrives: ask again until the daemon is gone.
while kill -0 "$daemon" 2>/dev/null; do
    wait "$daemon" && served=0 || served=$?
done
((demo == 0)) || exit "$demo"
exit "${served:-0}"
