#!/usr/bin/env bash
# The guess: a Kerberos ticket that has ended costs a client its connection until kinit has renewed it, or the servers
#   end the connection when it ends; a KDC matters when a program starts.
# Instead: a ticket counts when a connection is made, and not later: a client whose ticket has ended goes on for hours.
#   If it then loses the connection, kazoo takes the Kerberos library's error for a refusal by the servers ("Unknown
#   error"), and closes the client for good, within milliseconds; kinit does not bring it back. Its nodes stay for a
#   session timeout: it does not end its session. The same happens if only the KDC is away: each server has its own
#   ticket, so a fail-over to another server asks the KDC, and a KDC that is silent is waited for half a minute.
# Why it matters: a gap of seconds between two renewals, or a restart of the KDC, ends every lock whose client happens
#   to reconnect in it. Have a ticket for each server in the cache before a connection is made, and take an error there
#   for what it is: try again.
# Seen: kazoo 2.11.0, pure-sasl 0.6.2, kerberos 1.3.1, ZooKeeper 3.9.3 (out of pyspark 4.0.1), MIT krb5 1.20.1 (Debian
#   12: krb5-kdc, krb5-admin-server, krb5-user, libkrb5-dev, gcc), 2026-11-28. Needs Java.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
PATH=$PATH:/usr/sbin
for program in java krb5kdc kdb5_util kadmin.local kinit kvno krb5-config gcc; do
  command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
done
krb5-config --version
dir=$(mktemp -d)
kdc=
server=
cleanup() {
  for each in $kdc $server; do
    kill -KILL "$each" 2>/dev/null || true
    wait "$each" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0 pure-sasl==0.6.2 kerberos==1.3.1
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
basename "$dir"/jars/zookeeper-[0-9]*

mapfile -t ports < <("$python" - <<'PYTHON'
import socket

taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(listener.getsockname()[1] for listener in taken), sep="\n")
PYTHON
)
export KRB5_CONFIG=$dir/krb5.conf KRB5_KDC_PROFILE=$dir/kdc.conf KRB5CCNAME=FILE:$dir/tickets
realm=TEST.INVALID
cat >"$KRB5_CONFIG" <<CONF
[libdefaults]
 default_realm = $realm
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 $realm = {
  kdc = 127.0.0.1:${ports[0]}
 }
CONF
cat >"$KRB5_KDC_PROFILE" <<CONF
[kdcdefaults]
 kdc_listen = 127.0.0.1:${ports[0]}
 kdc_tcp_listen = 127.0.0.1:${ports[0]}
[realms]
 $realm = {
  database_name = $dir/principal
  key_stash_file = $dir/stash
 }
CONF
{
  kdb5_util create -s -P secret
  for name in zookeeper/localhost alice; do
    kadmin.local addprinc -randkey "$name"
    kadmin.local ktadd -k "$dir/${name%/*}.keytab" "$name"
  done
} >"$dir/kadmin.log" 2>&1 || { cat "$dir/kadmin.log" >&2; exit 69; }
krb5kdc -n >"$dir/kdc.log" 2>&1 &
kdc=$!

cat >"$dir/jaas.conf" <<CONF
Server {
  com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true isInitiator=false
  keyTab="$dir/zookeeper.keytab" principal="zookeeper/localhost@$realm";
};
CONF
printf '%s\n' tickTime=500 "dataDir=$dir/data" "clientPort=${ports[1]}" clientPortAddress=127.0.0.1 \
  admin.enableServer=false authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider >"$dir/zoo.cfg"
java -Xmx128m -Djava.security.auth.login.config="$dir/jaas.conf" -Djava.security.krb5.conf="$KRB5_CONFIG" \
  -cp "$dir/jars/*" org.apache.zookeeper.server.quorum.QuorumPeerMain "$dir/zoo.cfg" >"$dir/server.log" 2>&1 &
server=$!

timeout 150 "$python" - "$dir" "${ports[1]}" "$kdc" <<'PYTHON'
import logging
import os
import signal
import socket
import subprocess
import sys
import time

import kazoo.version
import kerberos
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

print("kazoo", kazoo.version.__version__)
folder, port, kdc = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
said = []


class Listening(logging.Handler):
    def emit(self, record):
        if "AUTH_FAILED" in record.getMessage():
            said.append(record.getMessage())


logging.getLogger("kazoo").addHandler(Listening())
logging.getLogger("kazoo").propagate = False
sockets = []


class Handler(SequentialThreadingHandler):
    def create_connection(self, *args, **kwargs):
        sockets.append(super().create_connection(*args, **kwargs))
        return sockets[-1]


def kinit(life):
    command = ["kinit", "-k", "-t", f"{folder}/alice.keytab", "-l", life, "alice"]
    while subprocess.run(command, capture_output=True).returncode:
        time.sleep(0.2)


def usable():
    return subprocess.run(["kvno", "zookeeper/localhost"], capture_output=True).returncode == 0


def client_of(handler=None):
    retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
    client = KazooClient(
        f"localhost:{port}", timeout=10, handler=handler, connection_retry=retry,
        sasl_options={"mechanism": "GSSAPI"},
    )
    client.start(timeout=40)
    return client


kinit("1h")
watcher = client_of()
kinit("4s")
client = client_of(Handler())
client.create("/lock", ephemeral=True)
while usable():
    time.sleep(0.1)
time.sleep(2)
served = client.exists("/lock") is not None
print("the ticket has ended: served:", served)
cut = time.monotonic()
sockets[-1].shutdown(socket.SHUT_RDWR)
while not said:
    time.sleep(0.01)
gone = time.monotonic() - cut
print(f"the connection is lost: after {gone:.1f} s: {said[0]!r}")
kinit("1h")
time.sleep(3)
print("renewed: connected:", client.connected, "state", client.state)
left = watcher.exists("/lock") is not None
print("its node is still there:", left)

# As on the way to another server, for which the cache has no ticket yet.
subprocess.run(["kdestroy"], check=True)
kinit("1h")
os.kill(kdc, signal.SIGSTOP)
began = time.monotonic()
_, context = kerberos.authGSSClientInit("zookeeper@localhost")
try:
    kerberos.authGSSClientStep(context, "")
    waited = 0.0
except kerberos.GSSError as error:
    waited = time.monotonic() - began
    print(f"the KDC is silent: {error.args[-1][0]}, after {waited:.0f} s")
finally:
    os.kill(kdc, signal.SIGCONT)
watcher.stop()
expected = served and gone < 3 and not client.connected and left and waited > 15
sys.exit(None if expected else "the behaviour has changed")
PYTHON
