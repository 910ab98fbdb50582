#!/usr/bin/env bash
# Makes the Debian package target/debian/unstun_VERSION_ARCHITECTURE.deb, and prints its path. As in install.sh, both programs
# are built unless BINARY names unstun, with unstun-lab beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

out=$(realpath -m "${CARGO_TARGET_DIR:-target}")/debian
root=$out/root
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
# Builds before the release are older than it, and in the order of their commits.
if [[ -e .git && -z $(git tag --points-at HEAD "v$version") ]]; then
    version+=$(TZ=UTC git log -1 --format='~%cd.g%h' --date=format-local:%Y%m%d.%H%M%S)
fi
architecture=$(dpkg --print-architecture)
package=$out/unstun_${version}_$architecture.deb

# The guide installs what is here by a pattern.
rm -rf "$root" "$out"/unstun_*.deb
mkdir -p "$root/DEBIAN"
DESTDIR=$root PREFIX=/usr UNITDIR=/lib/systemd/system scripts/install.sh >&2

# The administrator's files: options of the daemon, and the folders of alarms and of commands for guests.
install -D -m 644 packaging/debian/options.conf "$root/etc/unstun/options.conf"
install -d -m 755 "$root/etc/unstun/alarms" "$root/etc/unstun/guests"

doc=$root/usr/share/doc/unstun
install -D -m 644 packaging/debian/copyright "$doc/copyright"
gzip -9n <CHANGELOG.md >"$doc/changelog.gz"
gzip -9n "$root"/usr/share/man/man1/*.1
strip "$root/usr/bin/unstun" "$root/usr/bin/unstun-lab"

# The newest version of glibc whose symbols the programs use.
glibc=$(objdump -T "$root/usr/bin/unstun" "$root/usr/bin/unstun-lab" |
    grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
cat >"$root/DEBIAN/control" <<CONTROL
Package: unstun
Version: $version
Architecture: $architecture
Section: admin
Priority: optional
Maintainer: unstun developers <root@localhost>
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f 1)
Depends: libc6 (>= ${glibc#GLIBC_}), libgcc-s1, debconf (>= 0.5) | debconf-2.0, systemd | systemd-standalone-sysusers
Recommends: qemu-utils
Suggests: librbd1, prometheus, qemu-system
Description: virtual disks whose snapshots do not stun the VM
 unstun serves virtual disks to QEMU, libvirt, Proxmox and other NBD or
 vhost-user clients. It takes, commits and reverts snapshots without a pause
 that a guest can perceive, in a store of its own or as VMware's chains of
 VMDK files, and measures what a snapshot costs there and elsewhere.
CONTROL
(cd "$root" && find etc -type f -printf '/%p\n' | sort) >"$root/DEBIAN/conffiles"
(cd "$root" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
install -m 644 packaging/debian/templates "$root/DEBIAN/templates"
install -m 755 packaging/debian/postinst packaging/debian/prerm packaging/debian/postrm "$root/DEBIAN/"

dpkg-deb --root-owner-group --build "$root" "$package" >&2
rm -rf "$root"
echo "$package"
