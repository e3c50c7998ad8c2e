#!/usr/bin/env bash
# What a newcomer does, inside a fresh machine: `make up` cold, Ctrl-C, `make up` warm, Ctrl-C.
# Prints, per run, how many seconds the first placement took and which processes outlived Ctrl-C.
set -euo pipefail
set -m # a process group per job, so that a signal reaches it the way a terminal's Ctrl-C does

newcomer() {
  local log=/tmp/$1.log started=$EPOCHREALTIME
  make up UP_ARGS=--ephemeral >"$log" 2>&1 &
  local job=$!
  until grep -q "first pod placed" "$log"; do
    kill -0 "$job" 2>/dev/null || { cat "$log"; echo "make up ended by itself"; exit 1; }
    sleep 0.1
  done
  echo "$1 $(awk "BEGIN { print $EPOCHREALTIME - $started }")"
  kill -INT -- "-$job"
  wait "$job" || true
  grep -q "^stopped" "$log" || { cat "$log"; echo "no clean end"; exit 1; }
  echo "$1-left $(cat /proc/[0-9]*/comm 2>/dev/null | grep -cvxE 'bash|cat|grep' || true)"
}

newcomer cold
newcomer warm
