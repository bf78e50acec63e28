#!/usr/bin/env bash
# The guess: S3Path("s3://…/lock").open("x") creates the object or raises, as open("x") does for a file: of two that
#   try, one gets it. S3 can do that since 2024 (`If-None-Match`).
# Instead: "x" looks whether the object is there when the file is opened, and uploads without a condition when it is
#   closed. All who open it before the first one closes it get it; the last to close overwrites what the others wrote.
#   touch(exist_ok=False) looks and writes likewise. The check against a newer object (OverwriteNewerCloudError) does
#   not help: it compares dates, and who closes last has the later one.
# Why it matters: a lock, a "done" marker or a claim by exclusive creation, moved from files to S3, lets two in, and
#   one result is lost without an error. Use put_object(IfNoneMatch="*"); s3fs does for mode "xb".
# Seen: cloudpathlib 0.26.0, s3fs 2026.9.0, moto 5.2.5 as the server, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install 'cloudpathlib[s3]==0.26.0' s3fs==2026.9.0 \
  'moto[s3,server]==5.2.5' 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

export AWS_ACCESS_KEY_ID=nobody AWS_SECRET_ACCESS_KEY=nothing AWS_DEFAULT_REGION=us-east-1
timeout 100 "$python" - "$dir" <<'PYTHON'
import logging
import socket
import sys
import time
from importlib.metadata import version

import s3fs
from cloudpathlib import S3Client
from moto.server import ThreadedMotoServer

logging.disable()
with socket.create_server(("127.0.0.1", 0)) as free:
    there = free.getsockname()
server = ThreadedMotoServer(*there, verbose=False)
server.start()
url = "http://{}:{}".format(*there)
print(*(f"{package} {version(package)}" for package in ("cloudpathlib", "s3fs")), sep=", ")
first, second = (S3Client(endpoint_url=url, local_cache_dir=f"{sys.argv[1]}/{name}") for name in ("one", "two"))
first.client.create_bucket(Bucket="locks")


def contend(ours, theirs):
    """Both create, then write, then close, one after the other: what they are told, and what is there."""
    files, told = [], []
    for open_exclusively in (ours, theirs):
        try:
            files.append(open_exclusively())
        except FileExistsError:
            files.append(None)
    for who, file in zip((b"first", b"second"), files, strict=True):
        if file is None:
            told.append("refused")
            continue
        file.write(who)
        try:
            file.close()
        except FileExistsError:
            told.append("refused")
        else:
            told.append("has it")
        time.sleep(1.1)  # S3's dates are in seconds
    return told


def content(key):
    return first.client.get_object(Bucket="locks", Key=key)["Body"].read().decode()


paths = [client.CloudPath("s3://locks/cloudpathlib") for client in (first, second)]
cloud = contend(*(lambda path=path: path.open("xb") for path in paths)), content("cloudpathlib")
print("cloudpathlib:", cloud)
systems = [s3fs.S3FileSystem(endpoint_url=url, skip_instance_cache=True) for _ in range(2)]
system = contend(*(lambda it=it: it.open("locks/s3fs", "xb") for it in systems)), content("s3fs")
print("s3fs:", system)
server.stop()
expected = (["has it", "has it"], "second"), (["has it", "refused"], "first")
sys.exit(None if (cloud, system) == expected else "the behaviour has changed")
PYTHON
