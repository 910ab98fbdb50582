#!/usr/bin/env bash
# Installs a package in a fresh Debian 12 root, makes a VM there, removes the package and purges it.
# usage: try-deb.sh PACKAGE.deb
set -euo pipefail
cd "$(dirname "$0")/.."

# Writes during which the daemon is replaced: half a minute at the rate of a development machine.
REPLACED_WRITES=1000000

package=$(realpath "$1")
root=$(mktemp -d "$(realpath "${CARGO_TARGET_DIR:-target}")/debian-root.XXXXXX")
daemon=
client=
stop() {
    local process
    for process in $client $daemon; do kill "$process" 2>/dev/null || true; done
    for process in $client $daemon; do wait "$process" 2>/dev/null || true; done
    umount "$root/proc" 2>/dev/null || true
    rm -rf --one-file-system "$root"
}
trap stop EXIT

fail() { echo "try-deb: $*" >&2; exit 1; }
in_root=(chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C)
inside() { "${in_root[@]}" "$@" </dev/null; }
# As systemd would start it.
start() {
    local words
    words=$(sed -n 's/^ExecStart=//p' "$root/lib/systemd/system/unstun.service")
    mkdir -p "$root/var/lib/unstun"
    # Not by the function: the process that is ended later must be the daemon and no shell around it.
    "${in_root[@]}" sh -c ". /etc/unstun/options.conf; exec $words" </dev/null >/dev/null 2>"$root/daemon.log" &
    daemon=$!
    until inside unstun --datastore /var/lib/unstun status >/dev/null 2>&1; do
        kill -0 "$daemon" 2>/dev/null || { cat "$root/daemon.log"; fail "the daemon ended"; }
        sleep 0.1
    done
}

# Ends the daemon in order, as systemd would, and makes sure that it has ended.
end() {
    kill "$daemon"
    wait "$daemon" || { cat "$root/daemon.log"; fail "the daemon failed at its end"; }
    daemon=
    if inside unstun --datastore /var/lib/unstun status >/dev/null 2>&1; then fail "a daemon runs after its end"; fi
}

# The host's own sources of packages.
sources=(/etc/apt/sources.list)
[[ -e ${sources[0]} ]] || sources=(/etc/apt/sources.list.d/*.sources)
mmdebstrap --quiet --variant=apt --include=systemd-standalone-sysusers,man-db bookworm "$root" "${sources[0]}"
mount -t proc proc "$root/proc"
cp "$package" "$root/unstun.deb"
inside apt-get -q install -y --no-install-recommends ./unstun.deb

inside unstun --version
inside unstun up --help >/dev/null
inside getent group unstun >/dev/null || fail "no group unstun"
inside man -w unstun-snapshot-take >/dev/null || fail "no man page"
[[ -L $root/etc/systemd/system/multi-user.target.wants/unstun.service ]] || fail "the service is not enabled"
start
inside unstun vm create web --disk 1G
inside unstun snapshot take web first
inside unstun lab list >/dev/null

# A client of the host keeps the disk in use.
qemu-io -f raw -c 'write 0 1M' -c 'sleep 600000' \
    "nbd+unix:///web/disk0?socket=$root/var/lib/unstun/.unstun/nbd.sock" </dev/null >/dev/null &
client=$!
until inside unstun vm show web --json | grep -q '"nbd_clients": *1'; do
    kill -0 "$client" || fail "the client ended"
    sleep 0.1
done
if inside apt-get -q remove -y unstun >"$root/refused" 2>&1; then fail "the package was removed while a disk was in use"; fi
grep -q "disks of 1 VMs are in use" "$root/refused" || { cat "$root/refused"; fail "the refusal does not say why"; }
inside unstun vm show web >/dev/null || fail "the refused removal ended the daemon"
kill "$client" && { wait "$client" || true; }
client=

# The same version again, as an upgrade is: it stays enabled, and the settings stay. QEMU writes meanwhile, as `attach` prints
# its disk: its requests wait for the new daemon, and none fails.
echo 'UNSTUN_OPTIONS="--bin-hours 48"' >"$root/etc/unstun/options.conf"
until inside unstun vm show web --json | grep -q '"nbd_clients": *0'; do sleep 0.1; done
socket=$root/var/lib/unstun/.unstun/nbd.sock
qemu-img bench -w -c "$REPLACED_WRITES" -d 4 -s 4096 --image-opts \
    "driver=nbd,server.type=unix,server.path=$socket,export=web/disk0,reconnect-delay=60" </dev/null >"$root/bench" 2>&1 &
client=$!
until inside unstun vm show web --json | grep -q '"nbd_clients": *1'; do
    kill -0 "$client" || fail "the client ended"
    sleep 0.1
done
inside dpkg --install /unstun.deb
grep -q 48 "$root/etc/unstun/options.conf" || fail "an upgrade changed the settings"
began_ms=$(date +%s%3N)
end
start
ended_ms=$(date +%s%3N)
kill -0 "$client" 2>/dev/null || { cat "$root/bench"; fail "the client ended before the daemon was replaced, or failed"; }
wait "$client" || { cat "$root/bench"; fail "a write failed while the daemon was replaced"; }
client=
echo "try-deb: the daemon was replaced in $((ended_ms - began_ms)) ms under $REPLACED_WRITES writes of QEMU's, of which none failed"
inside unstun snapshot tree web | grep -q first || fail "the snapshot is missing after a restart"
end
inside apt-get -q remove -y unstun
[[ -e $root/var/lib/unstun/web ]] || fail "the removal took the disks"
inside apt-get -q purge -y unstun
[[ -e $root/var/lib/unstun/web ]] || fail "the purge took the disks without a yes"

# Purged with a yes.
inside apt-get -q install -y --no-install-recommends ./unstun.deb
inside sh -c 'echo "unstun unstun/remove-data boolean true" | debconf-set-selections'
inside apt-get -q purge -y unstun
[[ ! -e $root/var/lib/unstun ]] || fail "the purge left the disks in spite of a yes"
echo "try-deb: $(basename "$package") installs, serves, refuses its removal under a client, and keeps the disks"
