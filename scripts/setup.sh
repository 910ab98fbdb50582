#!/usr/bin/env bash
# Installs the programs a command needs and is quiet when they are all there.
# usage: setup.sh run|test|bench
set -euo pipefail

say() { printf 'setup: %s\n' "$*"; }
die() { say "$*" >&2; exit 1; }

# program:package, as in Debian 12.
declare -A PROGRAMS=(
    [run]="cc:gcc"
    [test]="cc:gcc qemu-img:qemu-utils qemu-io:qemu-utils fio:fio nbdinfo:libnbd-bin nbdcopy:libnbd-bin"
)
PROGRAMS[bench]="${PROGRAMS[test]} qemu-storage-daemon:qemu-system-common nbdkit:nbdkit python3:python3"

purpose=${1:-test}
[[ -v PROGRAMS[$purpose] ]] || die "no such purpose: $purpose (expected run, test or bench)"

# A shell that rustup has not been sourced into.
cargo_home=${CARGO_HOME:-$HOME/.cargo}
command -v cargo >/dev/null || PATH=$cargo_home/bin:$PATH
command -v cargo >/dev/null || die "no cargo: install stable Rust with rustup first, then run this again"

missing=()
for pair in ${PROGRAMS[$purpose]}; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair##*:}")
done
# The linker finds the C library's start files only with its development package.
[[ -e /usr/include/stdlib.h ]] || missing+=(libc6-dev)

if ((${#missing[@]})); then
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    say "installing ${missing[*]}"
    command -v apt-get >/dev/null || die "no apt-get here; install these by hand: ${missing[*]}"
    as_root=()
    if ((EUID != 0)); then
        command -v sudo >/dev/null || die "neither root nor sudo; as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    apt_get=("${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120)
    "${apt_get[@]}" update </dev/null || die "apt-get update failed; is there a network?"
    "${apt_get[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null ||
        die "apt-get could not install ${missing[*]}"
fi

if [[ $purpose == test ]]; then
    for component in rustfmt:fmt clippy:clippy; do
        cargo "${component##*:}" --version >/dev/null 2>&1 && continue
        say "adding ${component%%:*} to the installed toolchain"
        rustup component add "${component%%:*}" ||
            die "this toolchain has no ${component%%:*}: rustup component add ${component%%:*}"
    done
fi
