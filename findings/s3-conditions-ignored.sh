#!/usr/bin/env bash
# The guess: a store that speaks S3 honours a condition (`If-Match`, `If-None-Match`) or refuses it (501); and one that
#   honours it for an upload does so however the object is written.
# Instead: s3rver ignores every condition, of uploads, reads and deletions: a stale write returns 200. moto honours them
#   for uploads and deletions, and `If-None-Match` when parts are completed; it ignores `If-Match` there, and both when
#   an object is copied over the target.
# Why it matters: a lock, or a guard, by compare-and-swap on an object passes each test against such a store, until two
#   writers meet. Probe the store: a stale condition must be refused, for each kind of request that is used.
# Seen: moto 5.2.5, s3rver 3.7.1, boto3 1.44.8, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
command -v npm >/dev/null || { echo "this finding needs npm" >&2; exit 69; }
dir=$(mktemp -d)
servers=()
cleanup() {
  for server in "${servers[@]}"; do
    kill -KILL "$server" 2>/dev/null || true
    wait "$server" 2>/dev/null || true
  done
  rm -rf "$dir"
}
trap cleanup EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install 'moto[s3,server]==5.2.5' boto3==1.44.8 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }
npm install --silent --no-fund --no-audit --prefix "$dir" s3rver@3.7.1 >"$dir/npm.log" 2>&1 ||
  { cat "$dir/npm.log" >&2; exit 69; }
free_port() { "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
moto=$(free_port)
"$dir/venv/bin/moto_server" -H 127.0.0.1 -p "$moto" >"$dir/moto.log" 2>&1 &
servers+=($!)
s3rver=$(free_port)
node "$dir/node_modules/s3rver/bin/s3rver.js" -d "$dir/data" -a 127.0.0.1 -p "$s3rver" >"$dir/s3rver.log" 2>&1 &
servers+=($!)

timeout 100 "$python" - "$moto" "$s3rver" <<'PYTHON'
import socket
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

print("boto3", boto3.__version__)


def store(port):
    while True:
        try:
            socket.create_connection(("127.0.0.1", int(port))).close()
            break
        except OSError:
            time.sleep(0.2)
    return boto3.client(
        "s3",
        endpoint_url=f"http://127.0.0.1:{port}",
        aws_access_key_id="S3RVER",
        aws_secret_access_key="S3RVER",
        region_name="us-east-1",
        config=Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required"),
    )


def accepted(s3):
    """The conditional requests that a store accepts although their condition is false."""
    target = {"Bucket": "bucket", "Key": "lock"}
    s3.create_bucket(Bucket="bucket")
    s3.put_object(Bucket="bucket", Key="source", Body=b"copied")
    old = s3.put_object(**target, Body=b"first")["ETag"]
    s3.put_object(**target, Body=b"second")

    def put(**condition):
        s3.put_object(**target, Body=b"stale", **condition)

    def complete(**condition):
        upload = s3.create_multipart_upload(**target)["UploadId"]
        part = s3.upload_part(**target, UploadId=upload, PartNumber=1, Body=b"stale")
        parts = [{"ETag": part["ETag"], "PartNumber": 1}]
        s3.complete_multipart_upload(**target, UploadId=upload, MultipartUpload={"Parts": parts}, **condition)

    def copy(**condition):
        s3.copy_object(**target, CopySource="bucket/source", **condition)

    def delete(**condition):
        s3.delete_object(**target, **condition)

    passed = []
    for request in (put, complete, copy, delete):
        for condition in ({"IfMatch": old}, {"IfNoneMatch": "*"}):
            if request is delete and "IfNoneMatch" in condition:
                continue
            try:
                request(**condition)
                passed.append(f"{request.__name__} {next(iter(condition))}")
            except ClientError as error:
                assert error.response["Error"]["Code"] == "PreconditionFailed", error
    return passed


moto, s3rver = (accepted(store(port)) for port in sys.argv[1:])
print("moto accepts, although the condition is false:", moto)
print("s3rver accepts, although the condition is false:", s3rver)
everything = [f"{request} {it}" for request in ("put", "complete", "copy") for it in ("IfMatch", "IfNoneMatch")]
expected = moto == ["complete IfMatch", "copy IfMatch", "copy IfNoneMatch"] and s3rver == [*everything, "delete IfMatch"]
sys.exit(None if expected else "the behaviour has changed")
PYTHON
