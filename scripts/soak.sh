#!/usr/bin/env bash
# Long runs: crash simulation from fresh seeds, then kill -9 cycles and real clients, until the time is up.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-60}

export UNSTUN_CRASH_CUTS=${UNSTUN_CRASH_CUTS:-100000}
export UNSTUN_KILL_CYCLES=${UNSTUN_KILL_CYCLES:-50}
export UNSTUN_STAGE_LIMIT_S=$((minutes * 60))
rounds=0
scripts/test.sh setup build
while ((SECONDS < minutes * 60)); do
    # The first seed of the round: printed, so that a failure can be repeated.
    UNSTUN_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
    export UNSTUN_SEED
    echo "UNSTUN_SEED=$UNSTUN_SEED UNSTUN_CRASH_CUTS=$UNSTUN_CRASH_CUTS"
    scripts/test.sh crash clients
    rounds=$((rounds + 1))
done
echo "$rounds rounds in $SECONDS s, nothing found"
