#!/usr/bin/env bash
# Long runs: power cuts from seeds that `make test` does not reach, then kill -9 cycles and real clients with fresh
# seeds, until the time is up.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-60}

export UNSTUN_STAGE_LIMIT_S=$((minutes * 60))
export CRASH_CUTS=${CRASH_CUTS:-$((minutes * 5000))}
export UNSTUN_KILL_CYCLES=${UNSTUN_KILL_CYCLES:-50}
scripts/test.sh setup build crash
rounds=0
while ((SECONDS < minutes * 60)); do
    # Printed, so that a failure can be repeated.
    UNSTUN_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
    export UNSTUN_SEED
    echo "UNSTUN_SEED=$UNSTUN_SEED UNSTUN_KILL_CYCLES=$UNSTUN_KILL_CYCLES"
    scripts/test.sh clients
    rounds=$((rounds + 1))
done
echo "$CRASH_CUTS power cuts and $rounds rounds of clients in $SECONDS s, nothing found"
