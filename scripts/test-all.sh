#!/usr/bin/env bash
# Every stage of `make test`, with its longer campaigns: 5,000 hostile folders, ten times the power cuts and kill -9 cycles.
# The lab sweeps chains of 1,000 layers. Each count can be set. The lint stage builds the documentation as well, a package is built and tried, and
# where Go is installed an S3 server is built for the tests of repositories in buckets. Ceph is installed for those of RBD, and virt-v2v for
# those of OVAs.
set -euo pipefail
cd "$(dirname "$0")/.."

export LINT_DOCS=${LINT_DOCS-1}
export SMOKE_PACKAGE=${SMOKE_PACKAGE-1}
export BUILD_VERSITYGW=${BUILD_VERSITYGW-1}
export INSTALL_CEPH=${INSTALL_CEPH-1}
export INSTALL_VIRT_V2V=${INSTALL_VIRT_V2V-1}
export VIRT_V2V_INSPECTS=${VIRT_V2V_INSPECTS-1}
export HOSTILE_FOLDERS=${HOSTILE_FOLDERS:-5000}
export CONSOLE_LOOKS=all
export LAB_AUDIT=1
export SWEEP_LAYERS=${SWEEP_LAYERS:-1000}
export CRASH_CUTS=${CRASH_CUTS:-100000}
export FAULT_STRIDE=${FAULT_STRIDE:-1}
export CRASH_RUNS=${CRASH_RUNS:-5000}
export UNSTUN_KILL_CYCLES=${UNSTUN_KILL_CYCLES:-30}
# At 20 cuts a second, a third of what two quiet cores do, and half a second for each folder.
export UNSTUN_STAGE_LIMIT_S=${UNSTUN_STAGE_LIMIT_S:-$((3600 + CRASH_CUTS / 20 + HOSTILE_FOLDERS / 2))}
export UNSTUN_TEST_PROFILE=release
exec scripts/test.sh "$@"
