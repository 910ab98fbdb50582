#!/usr/bin/env bash
# Installs into a temporary DESTDIR as a packager does, with link-time optimisation, and runs the demo with what was
# installed. Makes a Debian package of it, and tries that in a fresh Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

mkdir -p "${CARGO_TARGET_DIR:-target}"
root=$(mktemp -d "$(realpath "${CARGO_TARGET_DIR:-target}")/package.XXXXXX")
daemon=
stop() {
    [[ -z $daemon ]] || { kill -TERM "$daemon" 2>/dev/null || true; wait "$daemon" || true; }
    rm -rf "$root"
}
trap stop EXIT

DESTDIR=$root scripts/install.sh
unstun=$root/usr/local/bin/unstun
export UNSTUN_DATASTORE=$root/datastore
mkdir "$UNSTUN_DATASTORE"
"$unstun" --version
"$unstun" up </dev/null &
daemon=$!
until "$unstun" status >/dev/null 2>&1; do
    kill -0 "$daemon" 2>/dev/null || { wait "$daemon"; exit 1; }
    sleep 0.1
done
"$unstun" demo

package=$(BINARY=$unstun scripts/deb.sh)
if ((EUID == 0)); then
    scripts/setup.sh deb
    scripts/try-deb.sh "$package"
else
    echo "SKIPPED debian_package: not root: the package cannot be tried in a Debian of its own"
fi
