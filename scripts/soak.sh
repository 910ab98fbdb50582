#!/usr/bin/env bash
# Long runs: a million power cuts, most of them from seeds that `make test` does not reach (about five hours on two cores),
# then kill -9 cycles and real clients with fresh seeds for SOAK_MINUTES.
set -euo pipefail
cd "$(dirname "$0")/.."
minutes=${SOAK_MINUTES:-60}

export CRASH_CUTS=${CRASH_CUTS:-1000000}
# At 20 cuts a second, a third of what two quiet cores do.
export UNSTUN_STAGE_LIMIT_S=$((CRASH_CUTS / 20 + minutes * 60))
export UNSTUN_KILL_CYCLES=${UNSTUN_KILL_CYCLES:-50}
export UNSTUN_TEST_PROFILE=release
scripts/test.sh setup build crash
# Folders of the build's file system, and one after the other a file system in a loop device.
kinds=("")
((EUID == 0)) && kinds=("" ext4 xfs)
rounds=0
began=$SECONDS
while ((SECONDS - began < minutes * 60)); do
    # Printed, so that a failure can be repeated.
    UNSTUN_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
    export UNSTUN_SEED
    export UNSTUN_KILL_FS=${kinds[rounds % ${#kinds[@]}]}
    echo "UNSTUN_SEED=$UNSTUN_SEED UNSTUN_KILL_CYCLES=$UNSTUN_KILL_CYCLES UNSTUN_KILL_FS=$UNSTUN_KILL_FS"
    scripts/test.sh clients
    rounds=$((rounds + 1))
done
echo "$CRASH_CUTS power cuts and $rounds rounds of clients in $SECONDS s, nothing found"
