#!/usr/bin/env bash
# A Ceph cluster of one node for tests and trials: a monitor and one OSD on this machine alone, without systemd. Its files are
# in a folder, which must not exist at the start. 16 GiB sparse, about 600 MiB of memory.
# usage: ceph-cluster.sh start FOLDER [cephx] | stop FOLDER
# With cephx, clients need a key: FOLDER/ceph.client.admin.keyring, and keys that `ceph auth` makes.
set -euo pipefail

die() { echo "ceph-cluster.sh: $*" >&2; exit 1; }

verb=${1:-} folder=${2:-} auth=${3:-none}
[[ -n $folder && $auth =~ ^(none|cephx)$ ]] || die "usage: ceph-cluster.sh start FOLDER [cephx] | stop FOLDER"
PATH=$PATH:/usr/sbin:/sbin

# Ends the processes by the ids that `start` has noted, the OSD first.
stop() {
    local name pid
    for name in osd mon; do
        pid=$(cat "$folder/$name.pid" 2>/dev/null) || continue
        kill "$pid" 2>/dev/null || continue
        for _ in {1..100}; do
            kill -0 "$pid" 2>/dev/null || break
            read -r -t 0.1 <> <(:) || true
        done
        kill -9 "$pid" 2>/dev/null || true
    done
}

if [[ $verb == stop ]]; then
    stop
    exit
fi
[[ $verb == start ]] || die "no such verb: $verb (expected start or stop)"
for program in ceph ceph-mon ceph-osd monmaptool rbd; do
    command -v "$program" >/dev/null || die "no $program: scripts/setup.sh ceph installs it"
done
mkdir "$folder" || die "$folder must not exist"
folder=$(cd "$folder" && pwd)

# A free port: the system gives one, and nobody else asks for it soon after.
free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

fsid=$(cat /proc/sys/kernel/random/uuid)
port=$(free_port)
conf=$folder/ceph.conf
cat >"$conf" <<END
[global]
fsid = $fsid
mon host = [v2:127.0.0.1:$port]
public addr = 127.0.0.1
auth cluster required = $auth
auth service required = $auth
auth client required = $auth
keyring = $folder/ceph.\$name.keyring
run dir = $folder
pid file =
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd crush chooseleaf type = 0
mon allow pool size one = true
mon osd full ratio = 0.99
mon osd backfillfull ratio = 0.98
mon osd nearfull ratio = 0.97
mon data avail crit = 1
mon data avail warn = 2
osd memory target = 939524096
bluestore block size = 17179869184
rbd default features = 61
[mon.a]
keyring = $folder/mon/keyring
mon data = $folder/mon
log file = $folder/mon.log
admin socket = $folder/mon.asok
[osd.0]
keyring = $folder/osd/keyring
osd data = $folder/osd
log file = $folder/osd.log
admin socket = $folder/osd.asok
END
export CEPH_CONF=$conf

monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$port]" "$folder/monmap" >/dev/null
mkdir "$folder/mon" "$folder/osd"
keys=$folder/first.keyring
ceph-authtool --create-keyring "$keys" --gen-key -n mon. --cap mon 'allow *' >/dev/null
ceph-authtool --create-keyring "$folder/ceph.client.admin.keyring" --gen-key -n client.admin \
    --cap mon 'allow *' --cap osd 'allow *' --cap mgr 'allow *' --cap mds 'allow *' >/dev/null
ceph-authtool "$keys" --import-keyring "$folder/ceph.client.admin.keyring" >/dev/null
ceph-mon -c "$conf" -i a --mkfs --monmap "$folder/monmap" --keyring "$keys"
trap 'stop' ERR
ceph-mon -c "$conf" -i a -f >"$folder/mon.out" 2>&1 </dev/null &
echo $! >"$folder/mon.pid"
ceph() { command ceph -c "$conf" --connect-timeout 30 "$@" 2>>"$folder/ceph.err"; }
osd=$(cat /proc/sys/kernel/random/uuid)
secret=$(ceph-authtool --gen-print-key)
[[ $(echo "{\"cephx_secret\": \"$secret\"}" | ceph osd new "$osd" -i -) == 0 ]] ||
    die "the first OSD has another number than 0"
ceph-authtool --create-keyring "$folder/osd/keyring" -n osd.0 --add-key "$secret" >/dev/null
ceph-osd -c "$conf" -i 0 --mkfs --osd-uuid "$osd" >"$folder/mkfs.out" 2>&1
ceph-osd -c "$conf" -i 0 -f >"$folder/osd.out" 2>&1 </dev/null &
echo $! >"$folder/osd.pid"
ceph osd pool create vms 8 >/dev/null
ceph config set global mon_warn_on_pool_no_redundancy false >/dev/null
timeout 60 rbd -c "$conf" pool init vms
echo "$conf"
