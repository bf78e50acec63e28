#!/usr/bin/env bash
# The guess: TLS connections end when a certificate of theirs expires; and a server has to be restarted, or told by
#   client.certReload, to use a renewed one.
# Instead: certificates are looked at when a connection is made, and never again: client and server go on for as long as
#   their connection lasts, and nothing is logged. The first lost connection afterwards cannot be made again. The server
#   reads its files for each connection: a certificate that is renewed in place works at once, without a restart.
# Why it matters: an expired certificate is an outage that waits for the next network fault, and then takes all locks of
#   all clients at once, hours after the date. A test of the connection says nothing; look at the dates.
# Seen: ZooKeeper 3.9.3 (out of pyspark 4.0.1), kazoo 2.11.0, OpenSSL 3.0, Java 17, 2026-11-28. Needs Java and openssl.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
for program in java openssl; do
  command -v "$program" >/dev/null || { echo "this finding needs $program" >&2; exit 69; }
done
dir=$(mktemp -d)
server=
cleanup() {
  if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; wait "$server" || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT

python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
pip() { "$python" -m pip -q --disable-pip-version-check "$@" 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }; }
pip install kazoo==2.11.0
pip download --no-deps -d "$dir" pyspark==4.0.1
tar -xzf "$dir/pyspark-4.0.1.tar.gz" -C "$dir" --strip-components=2 --wildcards \
  '*/jars/zookeeper-*' '*/jars/netty-*' '*/jars/slf4j-api-*' '*/jars/snappy-java-*' '*/jars/metrics-core-*'
basename "$dir"/jars/zookeeper-[0-9]*

cd "$dir"
touch index
cat >ca.cnf <<CONF
[ca]
default_ca = own
[own]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
unique_subject = no
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = IP:127.0.0.1
CONF
curve=(-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes)
openssl req -x509 "${curve[@]}" -days 2 -subj /CN=authority -keyout ca.key -out ca.pem 2>openssl.log
openssl req "${curve[@]}" -subj /CN=server -keyout server.key -out server.csr 2>>openssl.log
certify() {  # until when
  openssl ca -batch -notext -config ca.cnf -in server.csr -cert ca.pem -keyfile ca.key -out server.crt \
    -enddate "$(date -u -d "$1" +%Y%m%d%H%M%SZ)" 2>>openssl.log
  cat server.key server.crt >new.pem && mv new.pem server.pem
}
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '%s\n' tickTime=500 "dataDir=$dir/data" "secureClientPort=$port" secureClientPortAddress=127.0.0.1 \
  admin.enableServer=false serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory \
  "ssl.keyStore.location=$dir/server.pem" "ssl.trustStore.location=$dir/ca.pem" ssl.clientAuth=none >zoo.cfg
export -f certify
export dir
certify "30 seconds"
java -Xmx128m -cp "$dir/jars/*" org.apache.zookeeper.server.quorum.QuorumPeerMain zoo.cfg >server.log 2>&1 &
server=$!

timeout 150 "$python" - "$port" <<'PYTHON'
import logging
import socket
import subprocess
import sys
import time

import kazoo.version
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler

print("kazoo", kazoo.version.__version__)
said, sockets = [], []


class Listening(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


logging.getLogger("kazoo").addHandler(Listening())
logging.getLogger("kazoo").propagate = False


class Handler(SequentialThreadingHandler):
    def create_connection(self, *args, **kwargs):
        sockets.append(super().create_connection(*args, **kwargs))
        return sockets[-1]


def expired():
    command = ["openssl", "x509", "-checkend", "0", "-noout", "-in", "server.crt"]
    return subprocess.run(command, capture_output=True).returncode != 0


retry = {"max_tries": -1, "delay": 0.1, "max_delay": 0.5}
client = KazooClient(
    f"127.0.0.1:{sys.argv[1]}", timeout=10, handler=Handler(), connection_retry=retry,
    use_ssl=True, ca="ca.pem", check_hostname=True,
)
client.start(timeout=25)
client.create("/lock", ephemeral=True)
session = client.client_id
assert not expired()
while not expired():
    time.sleep(0.1)
said.clear()
until = time.monotonic() + 12  # more than a session timeout
served = True
while time.monotonic() < until:
    served = served and client.exists("/lock") is not None
    time.sleep(0.5)
quiet = not said
print("the certificate has expired: served for 12 s more:", served, "and nothing is logged:", quiet)

sockets[-1].shutdown(socket.SHUT_RDWR)
while not any("certificate has expired" in each for each in said):
    time.sleep(0.1)
time.sleep(3)
refused = not client.connected
print("the connection is lost: refused:", refused)
subprocess.run(["bash", "-c", "certify '1 hour'"], check=True)
renewed = time.monotonic()
while not client.connected and time.monotonic() < renewed + 30:
    time.sleep(0.1)
back = client.connected
print(f"renewed in its file, the server not touched: back: {back} after {time.monotonic() - renewed:.1f} s")
if back:
    print("the same session:", client.client_id == session)
client.stop()
sys.exit(None if served and quiet and refused and back else "the behaviour has changed")
PYTHON
