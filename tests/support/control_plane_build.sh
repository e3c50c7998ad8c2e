#!/usr/bin/env bash
# Makes a Kubernetes control plane for the tests: etcd, kube-apiserver, kube-scheduler and kubectl in
# one folder, whose path is the only line on stdout.
#
# Looked for in this order: $KUBEBUILDER_ASSETS (the envtest convention), the cache
# (~/.cache/apportion/kubernetes-<version>), and built from Debian's source package into the cache.
# Invariant: the cache folder appears whole or not at all, and nothing is written into the repository;
# apt reads a copy of this machine's own sources, so /etc/apt stays as it is.
#
#   control_plane_build.sh            find or build
#   control_plane_build.sh --find     find only; exit status 3 where a build would be needed
#
# The build takes about three minutes on two cores (six of one) and 3 GB in the cache folder while it runs.
# Exit status 4: it cannot be had on this machine, and the last line of stderr says why.
set -euo pipefail

binaries=(etcd kube-apiserver kube-scheduler kubectl)
cache="${XDG_CACHE_HOME:-$HOME/.cache}/apportion"
started=$SECONDS

say() { printf '[%4ds] control plane: %s\n' "$((SECONDS - started))" "$*" >&2; }
cannot() { printf 'no Kubernetes control plane: %s\n' "$*" >&2; exit 4; }

whole() { # every binary is there: the two that any test needs must be, the rest may come from PATH
  [[ -x $1/etcd && -x $1/kube-apiserver ]]
}

find_one() {
  if [[ -n ${KUBEBUILDER_ASSETS:-} ]]; then
    whole "$KUBEBUILDER_ASSETS" ||
      cannot "KUBEBUILDER_ASSETS=$KUBEBUILDER_ASSETS holds no etcd and kube-apiserver; unset it or point it at both"
    echo "$KUBEBUILDER_ASSETS"
    return 0
  fi
  local found
  for found in "$cache"/kubernetes-*/; do
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

tools() { # what building needs; root is needed here and nowhere else
  local missing=() pair
  for pair in etcd:etcd-server go:golang-go rsync:rsync jq:jq make:make; do
    command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
  done
  command -v dpkg-source >/dev/null || missing+=(dpkg-dev)
  ((${#missing[@]} == 0)) && return
  [[ $(id -u) == 0 ]] ||
    cannot "packages ${missing[*]} are missing and installing them needs root: apt-get install ${missing[*]}, or set KUBEBUILDER_ASSETS"
  say "installing ${missing[*]}"
  apt-get update -qq >&2 || cannot "apt-get update failed: is a package mirror reachable?"
  DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "${missing[@]}" >"$work/install.log" 2>&1 ||
    { tail -5 "$work/install.log" >&2; cannot "apt-get install ${missing[*]} failed (above)"; }
}

build() {
  command -v apt-get >/dev/null || cannot "this is no Debian; set KUBEBUILDER_ASSETS to a folder with etcd and kube-apiserver"
  mkdir -p "$cache"
  exec 9>"$cache/build.lock"
  flock -n 9 || { say "another build is under way; waiting for it"; flock 9; find_one && return; }
  work=$(mktemp -d "$cache/building.XXXXXX")
  trap 'chmod -R u+w "$work" 2>/dev/null; rm -rf "$work"' EXIT
  tools
  own_apt
  say "fetching Debian's source package of Kubernetes"
  apt-get "${source_apt[@]}" update -qq >&2 || cannot "the source lists of this machine's mirror could not be read"
  (cd "$work" && apt-get "${source_apt[@]}" source -qq kubernetes >"$work/source.log" 2>&1) ||
    { tail -5 "$work/source.log" >&2; cannot "apt-get source kubernetes failed (above)"; }
  local tree version
  tree=$(find "$work" -maxdepth 1 -type d -name 'kubernetes-*' | head -1)
  version=$(basename "$tree"); version=${version#kubernetes-}
  mend "$tree"
  mkdir -p "$tree/.go/src/k8s.io"
  ln -sfn "$tree" "$tree/.go/src/k8s.io/kubernetes"
  local name
  for name in kube-apiserver kube-scheduler kubectl; do
    say "building $name $version (the first one takes longest)"
    (cd "$tree" && nice -n 10 env GOPATH="$tree/.go" GOCACHE="$work/go-cache" GOFLAGS= CGO_ENABLED=0 \
      make WHAT="cmd/$name" >"$work/$name.log" 2>&1) ||
      { tail -20 "$work/$name.log" >&2; cannot "building $name failed (above)"; }
  done
  mkdir "$work/whole"
  for name in "${binaries[@]}"; do
    if [[ $name == etcd ]]; then cp "$(command -v etcd)" "$work/whole/etcd"; continue; fi
    cp "$(find "$tree/_output" -type f -name "$name" -perm -u+x | head -1)" "$work/whole/$name"
  done
  mv -T "$work/whole" "$cache/kubernetes-$version"
  say "kept in $cache/kubernetes-$version"
  echo "$cache/kubernetes-$version"
}

find_one && exit 0
[[ ${1:-} == --find ]] && { echo "no Kubernetes control plane is cached; run tests/support/control_plane_build.sh" >&2; exit 3; }
build
