#!/usr/bin/env bash
# Builds a controller that the nightly tests run with our services: JobSet, LeaderWorkerSet or KubeRay.
# The only line on stdout is its folder, which holds the program `manager` and its manifests in `config`.
#
# The sources are the Go modules below. A module must have the pinned sum, and its own go.sum pins all
# that it needs. The folder in the cache (~/.cache/apportion/NAME-VERSION) appears whole or not at all,
# and nothing else stays on the machine.
#
#   controllers_build.sh NAME            find or build; NAME is jobset, lws or kuberay
#   controllers_build.sh NAME --find     find only; exit status 3 if it must be built
#
# A build takes about ten minutes on two cores. Exit status 4: this machine cannot build it, and the last
# line of stderr says why. Exit status 1: the sources are not the pinned ones.
set -euo pipefail

case ${1:-} in
  jobset)
    module=sigs.k8s.io/jobset@v0.12.0 package=. config=config/components
    sum=h1:YYPuV0px8Ongq/RXmJg6V0w2UC67aiR+rCMD06vhQQQ=
    ;;
  lws)
    module=sigs.k8s.io/lws@v0.9.0 package=./cmd config=config
    sum=h1:DcJCgxjjoGOx//QHZkeKpyiblxYq70aCRZNYSfykWyI=
    ;;
  kuberay)
    module=github.com/ray-project/kuberay/ray-operator@v1.5.0 package=. config=config
    sum=h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=
    ;;
  *) echo "usage: controllers_build.sh jobset|lws|kuberay [--find]" >&2; exit 2 ;;
esac
cache="${XDG_CACHE_HOME:-$HOME/.cache}/apportion"
kept=$cache/$1-${module#*@v}

cannot() { printf 'cannot build %s: %s\n' "$module" "$*" >&2; exit 4; }

if [[ -x $kept/manager ]]; then echo "$kept"; exit 0; fi
if [[ ${2:-} == --find ]]; then
  echo "$module is not in the cache; run tests/support/controllers_build.sh $1" >&2
  exit 3
fi
command -v go >/dev/null || cannot "no go on the PATH; install Go 1.21 or newer"
mkdir -p "$cache"
work=$(mktemp -d "$cache/building.XXXXXX")
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS='-mod=readonly -modcacherw' GOCACHE=$work/go-cache GOMODCACHE=$work/modules
download=$(cd "$work" && go mod download -json "$module") || cannot "no module proxy serves it: $download"
field() { sed -n "s/^\t\"$1\": \"\(.*\)\",\?$/\1/p" <<<"$download"; }
if [[ $(field Sum) != "$sum" ]]; then
  echo "$module has the sum $(field Sum), but $sum is pinned" >&2
  exit 1
fi
cp -r "$(field Dir)" "$work/source"
mkdir "$work/whole"
(cd "$work/source" && nice -n 19 go build -buildvcs=false -trimpath -ldflags '-s -w' \
  -o "$work/whole/manager" "$package" >"$work/log" 2>&1) ||
  { tail -20 "$work/log" >&2; cannot "go build failed (above)"; }
cp -r "$work/source/$config" "$work/whole/config"
rm -rf "$kept"
mv -T "$work/whole" "$kept"
echo "$kept"
