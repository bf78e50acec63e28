#!/usr/bin/env bash
# The guess: aiohttp sends a request once. When the connection breaks before the answer, the caller gets
#   ServerDisconnectedError and decides.
# Instead: aiohttp sends each PUT, DELETE, GET and HEAD a second time then, at once and in silence, and no public option
#   turns that off. POST and PATCH it sends once. "Idempotent" is the method, not the request: a PUT with a condition
#   ("If-None-Match: *", Consul's `?cas=0`) is refused by its own first one, and a PUT that makes something (Consul's
#   `/v1/session/create`) makes it twice. httpx and requests send once and raise.
# Why it matters: "412: somebody else was first" is said to the only one who asked. The lock is taken, nobody works, and
#   nobody frees it. Retries that are turned off in the layer above change nothing: aiobotocore with no retries does the
#   same. aiohttp's own TestClient turns it off, so no test shows it. Write who asks into the value, and read it after
#   each refusal; or send such requests by httpx.
# Seen: aiohttp 3.14.5, aiobotocore 3.10.0, httpx 0.28.1, requests 2.34.2, 2026-11-30.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install aiohttp==3.14.5 aiobotocore==3.10.0 httpx==0.28.1 \
  requests==2.34.2 2>"$dir/pip.log" || { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - <<'PYTHON'
import asyncio
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

import aiohttp
import httpx
import requests
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore.exceptions import BotoCoreError, ClientError

CREATE = {"If-None-Match": "*"}
stored, heard = set(), {}


class Store(BaseHTTPRequestHandler):
    """Keeps the names that were put, and honours If-None-Match; its first answer about a name is lost."""

    protocol_version = "HTTP/1.1"

    def answer(self):
        name = self.path.partition("?")[0]
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        refused = name in stored and self.headers["If-None-Match"] == "*"
        stored.add(name)
        heard[name] = heard.get(name, 0) + 1
        if heard[name] == 1:
            self.close_connection = True
            return
        self.send_response(412 if refused else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_DELETE = do_POST = do_PATCH = answer

    def log_message(self, *arguments):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = "http://127.0.0.1:{}".format(server.server_address[1])


def by_requests():
    try:
        return requests.put(f"{url}/locks/requests", b"me", headers=CREATE, timeout=10).status_code
    except requests.ConnectionError:
        return "no answer"


def by_httpx():
    try:
        return httpx.put(f"{url}/locks/httpx", content=b"me", headers=CREATE, timeout=10).status_code
    except httpx.TransportError:
        return "no answer"


async def by_aiohttp(method, name):
    async with aiohttp.ClientSession() as session:
        try:
            async with session.request(method, f"{url}/locks/{name}", data=b"me", headers=CREATE) as answer:
                return answer.status
        except aiohttp.ServerDisconnectedError:
            return "no answer"


async def by_aiobotocore():
    config = AioConfig(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
    keys = {"aws_access_key_id": "me", "aws_secret_access_key": "me", "region_name": "here"}
    async with get_session().create_client("s3", endpoint_url=url, config=config, **keys) as client:
        try:
            await client.put_object(Bucket="locks", Key="aiobotocore", Body=b"me", IfNoneMatch="*")
            return 200
        except ClientError as error:
            return error.response["ResponseMetadata"]["HTTPStatusCode"]
        except BotoCoreError:
            return "no answer"


print(*(f"{name} {version(name)}" for name in ("aiohttp", "aiobotocore", "httpx", "requests")))
told = {
    "requests": by_requests(),
    "httpx": by_httpx(),
    "aiohttp": asyncio.run(by_aiohttp("PUT", "aiohttp")),
    "aiohttp-post": asyncio.run(by_aiohttp("POST", "aiohttp-post")),
    "aiobotocore": asyncio.run(by_aiobotocore()),
}
seen = {name: (heard[f"/locks/{name}"], answer) for name, answer in told.items()}
for name, (times, answer) in seen.items():
    print(f"{name}: the only one who asks to create it: sent {times} times, and told: {answer}")
alone, twice = (1, "no answer"), (2, 412)
expected = {"requests": alone, "httpx": alone, "aiohttp": twice, "aiohttp-post": alone, "aiobotocore": twice}
sys.exit(None if seen == expected else "the behaviour has changed")
PYTHON
