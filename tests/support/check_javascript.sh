#!/usr/bin/env bash
# Format, lint and types of the console's JavaScript and CSS. The tools come through npm, by the hashes of
# package-lock.json; nothing of them is shipped. Where npm cannot get them this says so and checks nothing, unless
# APPORTION_REQUIRE_NODE=1. `--install` only gets the packages, for the test that asks axe-core; `--write` formats.
set -euo pipefail
cd "$(dirname "$0")/../.."
STATIC=services/apportion/gateway/console
INSTALLED=node_modules/.installed

missing() {
  if [ "${APPORTION_REQUIRE_NODE:-}" = 1 ]; then
    echo "cannot check the console's JavaScript: $1" >&2
    exit 1
  fi
  echo "NOT CHECKED: format, lint and types of the console's JavaScript and CSS: $1" >&2
  exit 0
}

command -v npm >/dev/null || missing "there is no npm (node 20 or newer)"
exec 9<package-lock.json
flock 9 # lanes that need the packages run next to each other
if [ ! -e "$INSTALLED" ] || [ package-lock.json -nt "$INSTALLED" ]; then
  [ ! -L node_modules ] || missing "node_modules is a link, and the packages of another checkout stay as they are"
  echo "installing prettier, eslint, typescript and axe-core into node_modules (once)"
  npm ci --ignore-scripts --no-audit --no-fund --silent || missing "npm could not get the packages of package-lock.json"
  touch "$INSTALLED"
fi
flock --unlock 9
if [ "${1:-}" = --install ]; then exit 0; fi
if [ "${1:-}" = --write ]; then
  npx --no-install prettier --log-level warn --write "$STATIC" eslint.config.js tsconfig.json
  exit 0
fi
unformatted=$(npx --no-install prettier --list-different "$STATIC" eslint.config.js tsconfig.json) || {
  [ -n "$unformatted" ] || exit 1 # prettier failed, and has said why
  while read -r file; do # prettier itself names no lines
    npx --no-install prettier "$file" | diff --unified=1 --label "$file" --label "$file, formatted" "$file" - >&2 || true
  done <<<"$unformatted"
  echo "not formatted; run \`make format\`" >&2
  exit 1
}
npx --no-install eslint --max-warnings 0 "$STATIC/static/js"
npx --no-install tsc --project .
