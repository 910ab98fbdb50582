#!/usr/bin/env bash
# Installs unstun and unstun-lab, man pages, the shells' completions, and the systemd unit with what runs it as a user of
# its own. DESTDIR (for packagers) is put before every path, and the build optimises across crates; PREFIX is /usr/local; both
# programs are built unless BINARY names unstun, with unstun-lab beside it.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

destdir=${DESTDIR:-}
prefix=${PREFIX:-/usr/local}
bindir=${BINDIR:-$prefix/bin}
share=$prefix/share
unitdir=${UNITDIR:-$prefix/lib/systemd/system}
binary=${BINARY:-}

[[ $prefix == /* ]] || { echo "install: PREFIX=$prefix: expected an absolute path" >&2; exit 2; }

if [[ -z $binary ]]; then
    scripts/setup.sh run
    # `unstun --version` names it; an archive of the sources has none.
    if commit=$(git rev-parse --short HEAD 2>/dev/null); then export UNSTUN_COMMIT=$commit; fi
    profile=$([[ -n $destdir ]] && echo packaged || echo release)
    cargo build --profile "$profile" --locked --package unstun --package lab
    binary=${CARGO_TARGET_DIR:-target}/$profile/unstun
fi

generated=$(mktemp -d)
trap 'rm -rf "$generated"' EXIT
"$binary" generate man "$generated/man" 2>/dev/null
"$binary" generate completions "$generated/completions" 2>/dev/null
sed "s|@BINDIR@|$bindir|" packaging/unstun.service.in >"$generated/unstun.service"

install -D -m 755 "$binary" "$destdir$bindir/unstun"
install -D -m 755 "$(dirname "$binary")/unstun-lab" "$destdir$bindir/unstun-lab"
install -d "$destdir$share/man/man1"
install -m 644 "$generated"/man/*.1 "$destdir$share/man/man1/"
install -D -m 644 "$generated/completions/unstun" "$destdir$share/bash-completion/completions/unstun"
install -D -m 644 "$generated/completions/_unstun" "$destdir$share/zsh/site-functions/_unstun"
install -D -m 644 "$generated/completions/unstun.fish" "$destdir$share/fish/vendor_completions.d/unstun.fish"
install -D -m 644 "$generated/unstun.service" "$destdir$unitdir/unstun.service"
install -D -m 644 packaging/sysusers.conf "$destdir$prefix/lib/sysusers.d/unstun.conf"
install -D -m 644 packaging/own-user.conf "$destdir$share/doc/unstun/own-user.conf"
install -d "$destdir$share/doc/unstun/guides"
install -m 644 docs/guides/*.md "$destdir$share/doc/unstun/guides/"
install -m 644 docs/cli-json.md docs/glossary.md docs/reliability.md "$destdir$share/doc/unstun/"
install -D -m 644 packaging/prometheus/unstun.rules.yml "$destdir$share/unstun/prometheus/unstun.rules.yml"
install -D -m 644 packaging/grafana/unstun.json "$destdir$share/unstun/grafana/unstun.json"

echo "installed under $destdir$prefix; \`systemctl daemon-reload && systemctl enable --now unstun\` serves /var/lib/unstun"
