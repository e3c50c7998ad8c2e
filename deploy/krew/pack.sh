#!/usr/bin/env bash
# Builds the archive of the krew plugin from a wheel of `make wheel`, and the manifest with its checksum.
#
#   deploy/krew/pack.sh WHEEL URL OUT     write OUT/kubectl-apportion-linux-amd64.tar.gz and OUT/apportion.yaml
#
# URL is the address from which krew will download the archive. Needs Python 3.11 on x86-64, as users of the plugin do.
# Invariant: the archive has the versions of requirements/runtime.txt only.
set -euo pipefail

(($# == 3)) || { echo "usage: pack.sh WHEEL URL OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
wheel=$1 url=$2 out=$3 archive=kubectl-apportion-linux-amd64.tar.gz
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"

python3.11 -m pip install --quiet --require-hashes --target "$work/lib" -r "$here/../../requirements/runtime.txt"
python3.11 -m pip install --quiet --no-deps --target "$work/lib" "$wheel"
cp "$here/kubectl-apportion" "$here/../../LICENSE" "$work/"
chmod 755 "$work/kubectl-apportion"
tar --sort=name --owner=0 --group=0 --numeric-owner -czf "$out/$archive" -C "$work" kubectl-apportion LICENSE lib
sum=$(sha256sum "$out/$archive" | cut -d ' ' -f 1)
sed -e "s|@URL@|$url|" -e "s|@SHA256@|$sum|" "$here/apportion.yaml" >"$out/apportion.yaml"
echo "$out/$archive $sum"
