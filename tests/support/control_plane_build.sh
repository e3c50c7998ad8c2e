#!/usr/bin/env bash
# Makes a Kubernetes control plane for the tests: etcd, kube-apiserver, kube-controller-manager,
# kube-scheduler, kubelet and kubectl in one folder, whose path is the only line on stdout.
#
# Looked for in this order: $KUBEBUILDER_ASSETS (the envtest convention), the cache
# (~/.cache/apportion/kubernetes-<version>), and built into the cache: the version that
# tests/support/kubernetes/go.mod names, or with --oldest the one of Debian's source package, which is
# the oldest that we claim to run on and lacks kube-controller-manager and kubelet. With --helm it is
# helm instead, of the version that tests/support/helm/go.mod names, in a folder of its own.
# Invariant: the cache folder appears whole or not at all, and nothing is written into the repository;
# apt reads a copy of this machine's own sources, so /etc/apt stays as it is.
#
#   control_plane_build.sh [--oldest|--helm]            find or build
#   control_plane_build.sh [--oldest|--helm] --find     find only; exit status 3 where one must be built
#
# A build takes about ten minutes on two cores (three for the oldest, two for helm) and 5 GB while it
# runs.
# Exit status 4: it cannot be had on this machine, and the last line of stderr says why.
set -euo pipefail

module=$(cd "$(dirname "$0")/kubernetes" && pwd)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/apportion"
started=$SECONDS
oldest='' helm='' only_find=''
for option; do
  case $option in
    --oldest) oldest=1 ;;
    --helm) helm=1 module=${module%/*}/helm ;;
    --find) only_find=1 ;;
    *) echo "control_plane_build.sh: unknown option $option; see the top of the file" >&2; exit 2 ;;
  esac
done

version_of() { # of a module that go.mod requires
  sed -n "s|^\(require \)\?\t\?$1 v\([^ ]*\).*|\2|p" "$module/go.mod" | head -1
}
version=$(version_of k8s.io/kubernetes)
pattern=kubernetes-$version-etcd-$(version_of go.etcd.io/etcd/server/v3)
if [[ $oldest ]]; then pattern='kubernetes-1.20.*'; fi
if [[ $helm ]]; then pattern=helm-$(version_of helm.sh/helm/v4); fi

say() { printf '[%4ds] control plane: %s\n' "$((SECONDS - started))" "$*" >&2; }
cannot() { printf 'no Kubernetes control plane: %s\n' "$*" >&2; exit 4; }

whole() { # every binary is there: the two that any test needs must be, the rest may come from PATH
  if [[ $helm ]]; then [[ -x $1/helm ]]; else [[ -x $1/etcd && -x $1/kube-apiserver ]]; fi
}

find_one() {
  if [[ -n ${KUBEBUILDER_ASSETS:-} && ! $helm ]]; then
    whole "$KUBEBUILDER_ASSETS" ||
      cannot "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no etcd and kube-apiserver; unset it or point it at both"
    echo "$KUBEBUILDER_ASSETS"
    return 0
  fi
  local found
  for found in "$cache"/$pattern/; do # a pattern: unquoted
    if whole "${found%/}"; then
      echo "${found%/}"
      return 0
    fi
  done
  return 1
}

mend() { # Kubernetes 1.20 vendors a reflect2 that calls the runtime as it was before Go 1.18, and
  # so dies of a fault at the first custom resource: give its map iterator the memory it needs.
  local vendored=$1/vendor/github.com/modern-go/reflect2
  grep -q 'm unsafe.Pointer) \*hiter$' "$vendored/unsafe_link.go" || return 0
  sed -i -e 's/m unsafe.Pointer) \*hiter$/m unsafe.Pointer, it *hiter)/' \
    -e 's|^\t// rest fields are ignored$|\tpointers [6]unsafe.Pointer\n\twords [4]uintptr|' "$vendored/unsafe_link.go"
  sed -i -e 's/^\treturn &UnsafeMapIterator{$/\tit := new(hiter)\n\tmapiterinit(type2.rtype, *(*unsafe.Pointer)(obj), it)\n&/' \
    -e 's/^\t\thiter: *mapiterinit(.*$/\t\thiter: it,/' "$vendored/unsafe_map.go"
}

own_apt() { # apt with this machine's sources plus deb-src, in a folder of our own
  local etc=$work/apt
  mkdir -p "$etc/parts" "$etc/lists/partial" "$etc/cache/archives/partial"
  : >"$etc/sources.list"
  [[ -f /etc/apt/sources.list ]] &&
    sed -n 's/^deb\(-src\)\? /deb-src /p' /etc/apt/sources.list >"$etc/sources.list"
  local source
  for source in /etc/apt/sources.list.d/*.sources; do
    [[ -f $source ]] && sed 's/^Types:.*/Types: deb-src/' "$source" >"$etc/parts/$(basename "$source")"
  done
  for source in /etc/apt/sources.list.d/*.list; do
    [[ -f $source ]] && sed -n 's/^deb\(-src\)\? /deb-src /p' "$source" >"$etc/parts/$(basename "$source")"
  done
  source_apt=(-o "Dir::Etc::sourcelist=$etc/sources.list" -o "Dir::Etc::sourceparts=$etc/parts"
    -o "Dir::State::lists=$etc/lists" -o "Dir::Cache=$etc/cache" -o APT::Sandbox::User=root)
}

install() { # packages, given as program:package; root is needed here and nowhere else
  local missing=() pair
  for pair; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  ((${#missing[@]} == 0)) && return
  command -v apt-get >/dev/null ||
    cannot "this is no Debian, and ${missing[*]} must be there; or set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver"
  [[ $(id -u) == 0 ]] ||
    cannot "packages ${missing[*]} are missing and installing them needs root: apt-get install ${missing[*]}, or set KUBEBUILDER_ASSETS"
  say "installing ${missing[*]}"
  apt-get update -qq >&2 || cannot "apt-get update failed: is a package mirror reachable?"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >"$work/install.log" 2>&1 ||
    { tail -5 "$work/install.log" >&2; cannot "apt-get install ${missing[*]} failed (above)"; }
}

prepare() { # one build at a time, in a folder that goes when it ends
  mkdir -p "$cache"
  exec 9>"$cache/build.lock"
  flock -n 9 || { say "another build is under way; waiting for it"; flock 9; find_one && exit 0; }
  work=$(mktemp -d "$cache/building.XXXXXX")
  trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
}

keep() { # what is in the folder `whole`, under this name
  mv -T "$work/whole" "$cache/$1"
  say "kept in $cache/$1"
  echo "$cache/$1"
}

find_go() { # one that can fetch the Go that go.mod wants: 1.21 and newer do so by themselves
  install go:golang-go
  go=go
  local minor
  minor=$(go env GOVERSION | sed 's/^go1\.\([0-9]*\).*/\1/')
  ((minor >= 21)) && return
  local wanted toolchain
  wanted=$(sed -n 's/^go //p' "$module/go.mod")
  toolchain=golang.org/toolchain@v0.0.1-go$wanted.$(go env GOOS)-$(go env GOARCH)
  say "fetching Go $wanted, for $(go version) is too old"
  (cd "$work" && GO111MODULE=on GOFLAGS=-mod=mod GONOSUMDB=golang.org/toolchain go mod download "$toolchain") >&2 ||
    cannot "Go $wanted could not be fetched; install Go 1.21 or newer"
  toolchain=$(go env GOMODCACHE)/$toolchain
  chmod -R u+x "$toolchain/bin" "$toolchain/pkg/tool"
  go=$toolchain/bin/go
}

build() {
  prepare
  find_go
  local package about=k8s.io/component-base/version
  local minor=${version#*.}
  local says="-X $about.gitVersion=v$version -X $about.gitMajor=${version%%.*} -X $about.gitMinor=${minor%%.*}"
  mkdir "$work/whole"
  for package in $(sed -n -e '/^tool (/,/^)/s/^\t//p' -e 's/^tool \([^(]\)/\1/p' "$module/go.mod"); do
    local name=${package##*/}
    [[ $package == */etcd/* ]] && name=etcd
    say "building $name (the first of Kubernetes takes longest)"
    (cd "$module" && nice -n 10 env CGO_ENABLED=0 GOFLAGS=-modcacherw \
      GOCACHE="$work/go-cache" GOMODCACHE="$work/modules" "$go" build -buildvcs=false -trimpath \
      -ldflags "-s -w $says" -o "$work/whole/$name" "$package" >"$work/$name.log" 2>&1) ||
      { tail -20 "$work/$name.log" >&2; cannot "building $name failed (above)"; }
  done
  keep "$pattern"
}

build_oldest() {
  prepare
  install etcd:etcd-server go:golang-go rsync:rsync jq:jq make:make dpkg-source:dpkg-dev
  own_apt
  say "fetching Debian's source package of Kubernetes"
  apt-get "${source_apt[@]}" update -qq >&2 || cannot "the source lists of this machine's mirror could not be read"
  (cd "$work" && apt-get "${source_apt[@]}" source -qq kubernetes >"$work/source.log" 2>&1) ||
    { tail -5 "$work/source.log" >&2; cannot "apt-get source kubernetes failed (above)"; }
  local tree name
  tree=$(find "$work" -maxdepth 1 -type d -name 'kubernetes-*' | head -1)
  mend "$tree"
  mkdir -p "$tree/.go/src/k8s.io" "$work/whole"
  ln -sfn "$tree" "$tree/.go/src/k8s.io/kubernetes"
  for name in kube-apiserver kube-scheduler kubectl; do
    say "building $name of $(basename "$tree") (the first one takes longest)"
    (cd "$tree" && nice -n 10 env GOPATH="$tree/.go" GOCACHE="$work/go-cache" GOFLAGS= CGO_ENABLED=0 \
      make WHAT="cmd/$name" >"$work/$name.log" 2>&1) ||
      { tail -20 "$work/$name.log" >&2; cannot "building $name failed (above)"; }
    cp "$(find "$tree/_output" -type f -name "$name" -perm -u+x | head -1)" "$work/whole/$name"
  done
  cp "$(command -v etcd)" "$work/whole/etcd"
  keep "$(basename "$tree")"
}

find_one && exit 0
[[ $only_find ]] && { echo "no Kubernetes control plane is cached; run tests/support/control_plane_build.sh" >&2; exit 3; }
if [[ $oldest ]]; then build_oldest; else build; fi
