#!/usr/bin/env bash
# The guess: boto3's "precondition failed" for a conditional write (S3's `IfNoneMatch` and `IfMatch`, DynamoDB's
#   ConditionExpression) means that somebody else was there first, and that this write was not done.
# Instead: the client sends a request again by itself when its answer is lost. The first sending has taken effect; the
#   second meets it, is refused, and that is what the caller gets. Nothing tells how often the request was sent, but
#   the number of retries in the error's `ResponseMetadata`.
# Why it matters: a lock that was taken is reported as held by another: nobody works, and nobody releases it. A fenced
#   write that was done is reported as refused, and the holder gives up, or does it again elsewhere. After a refusal,
#   read whose the value is; or send once (`total_max_attempts`: 1), and take the error for "unknown".
# Seen: boto3 1.44.8, moto 5.2.5 as the server, 2026-11-28.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install 'moto[s3,dynamodb,server]==5.2.5' boto3==1.44.8 \
  2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

timeout 100 "$python" - <<'PYTHON'
import logging
import socket
import sys
import threading
from contextlib import suppress

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError
from moto.server import ThreadedMotoServer

logging.disable()
with socket.create_server(("127.0.0.1", 0)) as free:
    there = free.getsockname()
server = ThreadedMotoServer(*there, verbose=False)
server.start()


class Line:
    """Passes connections on to the server. It can lose the next answer: then it ends the connection instead."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.loses = False
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, upstream = self.listener.accept()[0], socket.create_connection(there)
            threading.Thread(target=self.copy, args=(client, upstream, False), daemon=True).start()
            threading.Thread(target=self.copy, args=(upstream, client, True), daemon=True).start()

    def copy(self, source, target, answers):
        with suppress(OSError):
            while data := source.recv(65536):
                if answers and self.loses and not data.startswith(b"HTTP/1.1 100 "):
                    self.loses = False
                    break
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


line = Line()


def clients(**config):
    options = {
        "endpoint_url": "http://127.0.0.1:{}".format(line.listener.getsockname()[1]),
        "region_name": "us-east-1",
        "aws_access_key_id": "nobody",
        "aws_secret_access_key": "nothing",
        "config": Config(s3={"addressing_style": "path"}, **config),
    }
    return boto3.client("s3", **options), boto3.client("dynamodb", **options)


s3, dynamodb = clients()
print("boto3", boto3.__version__)
s3.create_bucket(Bucket="locks")
first = s3.put_object(Bucket="locks", Key="mark", Body=b"token 7")["ETag"]
dynamodb.create_table(
    TableName="locks",
    KeySchema=[{"AttributeName": "name", "KeyType": "HASH"}],
    AttributeDefinitions=[{"AttributeName": "name", "AttributeType": "S"}],
    BillingMode="PAY_PER_REQUEST",
)


def mine(name):
    item = {"name": {"S": name}, "holder": {"S": "me"}}
    return {"TableName": "locks", "Item": item, "ConditionExpression": "attribute_not_exists(holder)"}


def told(write):
    """The verdict of a write whose first answer is lost, and how often it was sent again."""
    line.loses = True
    try:
        write()
    except ClientError as error:
        return error.response["Error"]["Code"], error.response["ResponseMetadata"]["RetryAttempts"]
    except HTTPClientError as error:
        return type(error).__name__, 0
    return "done", 0


def body(key):
    return s3.get_object(Bucket="locks", Key=key)["Body"].read().decode()


def holder(name):
    return dynamodb.get_item(TableName="locks", Key={"name": {"S": name}})["Item"]["holder"]["S"]


s3_once, dynamodb_once = clients(retries={"total_max_attempts": 1})
seen = {
    "S3, IfNoneMatch": (
        *told(lambda: s3.put_object(Bucket="locks", Key="lock", Body=b"me", IfNoneMatch="*")),
        body("lock"),
    ),
    "S3, IfMatch": (
        *told(lambda: s3.put_object(Bucket="locks", Key="mark", Body=b"token 8", IfMatch=first)),
        body("mark"),
    ),
    "DynamoDB": (*told(lambda: dynamodb.put_item(**mine("lock"))), holder("lock")),
    "S3, sent once": (
        *told(lambda: s3_once.put_object(Bucket="locks", Key="once", Body=b"me", IfNoneMatch="*")),
        body("once"),
    ),
    "DynamoDB, sent once": (*told(lambda: dynamodb_once.put_item(**mine("once"))), holder("once")),
}
for write, (verdict, repeats, there_now) in seen.items():
    print(f"{write}: {verdict}, sent again {repeats} times; what is there: {there_now}")
server.stop()
expected = {
    "S3, IfNoneMatch": ("PreconditionFailed", 1, "me"),
    "S3, IfMatch": ("PreconditionFailed", 1, "token 8"),
    "DynamoDB": ("ConditionalCheckFailedException", 1, "me"),
    "S3, sent once": ("ConnectionClosedError", 0, "me"),
    "DynamoDB, sent once": ("ConnectionClosedError", 0, "me"),
}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
