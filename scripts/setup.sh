#!/usr/bin/env bash
# Installs the programs a command needs and is quiet when they are all there.
# usage: setup.sh run|test|bench|deb|ceph|v2v
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

# program:package, as in Debian 12.
declare -A PROGRAMS=(
    [run]="cc:gcc"
    [test]="cc:gcc qemu-img:qemu-utils qemu-io:qemu-utils fio:fio nbdinfo:libnbd-bin nbdcopy:libnbd-bin jq:jq
        qemu-system-x86_64:qemu-system-x86 mke2fs:e2fsprogs mkfs.xfs:xfsprogs chromium:chromium
        nbdkit:nbdkit curl:curl"
)
PROGRAMS[ceph]="ceph-mon:ceph-mon ceph-osd:ceph-osd ceph:ceph-common rbd:ceph-common python3:python3"
PROGRAMS[v2v]="virt-v2v:virt-v2v mke2fs:e2fsprogs depmod:kmod"
PROGRAMS[deb]="${PROGRAMS[test]} mmdebstrap:mmdebstrap objdump:binutils"
PROGRAMS[bench]="${PROGRAMS[test]} qemu-storage-daemon:qemu-system-common python3:python3 restic:restic borg:borgbackup"

purpose=${1:-test}
[[ -v PROGRAMS[$purpose] ]] || die "no such purpose: $purpose (expected run, test, bench, deb, ceph or v2v)"

# A shell that rustup has not been sourced into.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
command -v cargo >/dev/null || PATH=$cargo_home/bin:$PATH
command -v cargo >/dev/null || die "no cargo: install stable Rust with rustup first, then run this again"

# Those that make file systems may be out of a user's path.
PATH=$PATH:/usr/sbin:/sbin

missing=()
for pair in ${PROGRAMS[$purpose]}; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# The linker finds the C library's start files only with its development package.
[[ -e /usr/include/stdlib.h ]] || missing+=(libc6-dev)
# Modules of Debian's Python, which the independent reader of backups imports.
if [[ $purpose == test ]] && ! /usr/bin/python3 -c 'import argon2, nacl, zstandard' 2>/dev/null; then
    missing+=(python3-argon2 python3-nacl python3-zstandard)
fi

# QEMU's librbd, beside which ours is measured.
if [[ $purpose == ceph && ! -e /usr/lib/$(uname -m)-linux-gnu/qemu/block-rbd.so ]]; then
    missing+=(qemu-block-extra)
fi

as_root() {
    if ((EUID == 0)); then
        "$@"
    else
        command -v sudo >/dev/null || die "neither root nor sudo; as root: $*"
        sudo "$@"
    fi
}

# As root, after an update of the lists of packages.
apt_get() {
    command -v apt-get >/dev/null || die "no apt-get here; by hand: apt-get $*"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120 "$@" </dev/null ||
        die "apt-get $* failed; is there a network?"
}

if ((${#missing[@]})); then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    say "installing ${missing[*]}"
    apt_get update
    apt_get install -y --no-install-recommends "${missing[@]}"
fi

# What makes virt-v2v's small guest looks for it, even where it is given another kernel's modules.
if [[ $purpose == v2v && ! -d /lib/modules ]]; then
    as_root mkdir /lib/modules
fi

# Into the current folder.
download() { apt-get -q -o APT::Sandbox::User=root download "$1" </dev/null; }

# Of the kernel that virtual machines get, 27 MB.
download_kernel() {
    local package
    package=$(apt-cache depends --important linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p')
    [[ -n $package ]] && download "$package"
}

# Its package would start a service.
download_agent() { download qemu-guest-agent; }

# An initiator that needs no service.
download_initiator() { download open-iscsi && download libopeniscsiusr; }

# 19 MB. Its package would start a service.
download_prometheus() { download prometheus; }

# Unpacks files of a package, or of several, beside the build. It is never installed: this machine keeps its own.
unpack() {
    local name=$1 to=${CARGO_TARGET_DIR:-target}/$1 get=$2 new package
    shift 2
    [[ -d $to ]] && return
    say "unpacking $name for the tests into $to"
    mkdir -p "${to%/*}"
    new=$(mktemp -d "$to.XXXXXX")
    # shellcheck disable=SC2064 # the name as it is now
    trap "rm -rf '$new'" EXIT
    # The lists of packages may name a package that has been replaced.
    (cd "$new" && { "$get" || { apt_get update && "$get"; }; }) ||
        die "cannot download Debian's package for $name; is there a network?"
    for package in "$new"/*.deb; do
        dpkg-deb --fsys-tarfile "$package" | tar -x -C "$new" --wildcards "$@" 2>"$new/missing" ||
            # Not each of several packages has all of the files.
            grep -q 'Not found in archive' "$new/missing" || die "cannot unpack $package: $(<"$new/missing")"
    done
    rm "$new"/*.deb "$new/missing"
    # At once, so that an interrupted set-up leaves nothing that looks complete.
    mv "$new" "$to"
}

# The rules of accessibility that the console's pages are held to. Without npm that test is skipped, and says so.
unpack_axe() {
    local to=${CARGO_TARGET_DIR:-target}/axe new
    { [[ -d $to ]] || ! command -v npm >/dev/null; } && return
    say "unpacking axe-core for the tests into $to"
    mkdir -p "${to%/*}"
    new=$(mktemp -d "$to.XXXXXX")
    if (cd "$new" && npm pack --silent axe-core@4 >/dev/null && tar -xzf axe-core-4*.tgz && rm axe-core-4*.tgz); then
        mv "$new" "$to"
    else
        say "npm has no axe-core here; its test is skipped"
        rm -rf "$new"
    fi
}

# A server of S3 for the tests of repositories in buckets. It takes minutes to build. Without Go those tests are skipped,
# and say so.
build_versitygw() {
    local to=${CARGO_TARGET_DIR:-target}/versitygw new
    { [[ -d $to ]] || ! command -v go >/dev/null; } && return
    say "building versitygw for the tests into $to"
    mkdir -p "${to%/*}"
    new=$(realpath "$(mktemp -d "$to.XXXXXX")")
    # Nothing of this stays but the program.
    if GOPATH=$new/go GOCACHE=$new/cache GOBIN=$new/bin GOFLAGS="${GOFLAGS:-} -modcacherw" \
        go install github.com/versity/versitygw/cmd/versitygw@v1.8.0; then
        mv "$new/bin" "$to"
    else
        say "versitygw cannot be built here; its tests are skipped"
    fi
    rm -rf "$new"
}

if [[ $purpose == test ]]; then
    unpack_axe
    [[ -z ${BUILD_VERSITYGW:-} ]] || build_versitygw
    # Its tests are skipped where it cannot be had.
    [[ -z ${INSTALL_CEPH:-} ]] || scripts/setup.sh ceph || say "Ceph cannot be installed here; its tests are skipped"
    [[ -z ${INSTALL_VIRT_V2V:-} ]] || scripts/setup.sh v2v || say "virt-v2v cannot be installed here; its tests are skipped"
    unpack guest-kernel download_kernel './boot/vmlinuz-*' './lib/modules/*'
    unpack guest-agent download_agent './usr/sbin/qemu-ga'
    unpack guest-initiator download_initiator './sbin/iscsistart' './usr/lib/*/libopeniscsiusr.so.*'
    unpack prometheus download_prometheus './usr/bin/*'
    for component in rustfmt:fmt clippy:clippy; do
        cargo "${component##*:}" --version >/dev/null 2>&1 && continue
        say "adding ${component%%:*} to the installed toolchain"
        rustup component add "${component%%:*}" ||
            die "this toolchain has no ${component%%:*}: rustup component add ${component%%:*}"
    done
fi
