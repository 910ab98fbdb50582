#!/usr/bin/env bash
# Makes a datastore with what this version writes, as crates/unstun/tests/clients/fixtures/VERSION.tar.gz. Run it once for each
# release, and never again for a released version: every later program must open it (tests/clients/upgrade.rs).
# usage: make-fixture.sh VERSION [UNSTUN]
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?usage: make-fixture.sh VERSION [UNSTUN]}
unstun=$(realpath "${2:-${CARGO_TARGET_DIR:-target}/debug/unstun}")
to=crates/unstun/tests/clients/fixtures/$version.tar.gz
[[ ! -e $to ]] || { echo "make-fixture: $to exists; a released one never changes" >&2; exit 3; }

folder=$(mktemp -d)
export UNSTUN_DATASTORE=$folder/ds
daemon=
stop() {
    [[ -z $daemon ]] || { kill "$daemon" 2>/dev/null || true; wait "$daemon" || true; }
    daemon=
}
trap 'stop; rm -rf "$folder"' EXIT

"$unstun" up --create --web none </dev/null >"$folder/log" 2>&1 &
daemon=$!
until "$unstun" status >/dev/null 2>&1; do
    kill -0 "$daemon" || { cat "$folder/log"; exit 1; }
    sleep 0.1
done

# The first MiB of VM's disk is 1 in `a`, 2 in `b`, 3 now.
write() { qemu-io -f raw -c "write -P $2 0 1M" "nbd+unix:///$1/disk0?socket=$UNSTUN_DATASTORE/.unstun/nbd.sock"; }
for vm in native redo; do
    "$unstun" vm create "$vm" --store "$vm" --disk 16M
    write "$vm" 1
    "$unstun" snapshot take "$vm" a -m first
    write "$vm" 2
    "$unstun" snapshot take "$vm" b
    write "$vm" 3
    "$unstun" vm set "$vm" --iops 20000 --weight 200
    "$unstun" vm set "$vm" --add-tag prod --note "the shop"
    "$unstun" vm set "$vm" --guest-agent libvirt:shop --frozen-max 500
    "$unstun" vm create "$vm-binned" --store "$vm" --disk 16M
    write "$vm-binned" 4
    "$unstun" vm remove "$vm-binned" --delete-disks --yes
done
# A clone of a VM with files names its parent by an absolute path, which another folder does not have.
"$unstun" vm clone native@a clone
"$unstun" policy create nightly --schedule 'Mon 03:00 UTC' --keep-last 3 --tag prod --enabled false
"$unstun" policy apply nightly
"$unstun" token create ci --role operator --vm 'native*'
"$unstun" alarm set snapshot_old 100
stop

rm -rf "$UNSTUN_DATASTORE/.unstun/vhost"
mkdir -p "$(dirname "$to")"
tar --create --gzip --sparse --sort=name --owner=0 --group=0 --exclude='*.sock' --file="$to" -C "$folder" ds
ls -l "$to"
