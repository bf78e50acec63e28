#!/usr/bin/env bash
# The guess: a lock made with `cache.add(key, owner, timeout)` stays until its time is over or it is deleted.
# Instead: a cache throws living entries away. Django's file, database and local-memory caches keep 300 entries by
#   default and drop a third of them when one more comes, whatever their timeout; a `diskcache.Lock`, which has no
#   expiry at all, goes when the cache passes its size limit, and its holder is not told.
# Why it matters: "run this task once" by `cache.add` is a common recipe. Any busy page that caches its fragments
#   beside it ends the lock, and a second holder gets it while the first works.
# Seen: Django 5.2.19, diskcache 5.6.3, 2026-11-27.
# Exit: 0 as described, 1 the behaviour has changed, 69 something could not be had.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
python=$dir/venv/bin/python
"$python" -m pip -q --disable-pip-version-check install django==5.2.19 diskcache==5.6.3 2>"$dir/pip.log" ||
  { cat "$dir/pip.log" >&2; exit 69; }

timeout 60 "$python" - "$dir" <<'PYTHON'
import sys

import django
import diskcache
from django.conf import settings
from django.core.cache import caches
from django.core.management import call_command

folder = sys.argv[1]
backend = "django.core.cache.backends."
settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{folder}/django.db"}},
    CACHES={
        "default": {"BACKEND": backend + "locmem.LocMemCache"},
        "file": {"BACKEND": backend + "filebased.FileBasedCache", "LOCATION": f"{folder}/files"},
        "database": {"BACKEND": backend + "db.DatabaseCache", "LOCATION": "cache"},
    },
)
django.setup()
call_command("createcachetable")
print("Django", django.__version__, "diskcache", diskcache.__version__)
second = {}

for name in ("default", "file", "database"):
    cache = caches[name]
    # The file cache drops entries at random, the database cache by the order of their keys: a few rounds.
    for page in range(5000):
        if page == 0:
            assert cache.add("lock", "first", timeout=3600)
        cache.set(f"page-{page}", "text", timeout=3600)
        if page >= 300 and page % 50 == 0 and cache.add("lock", "second", timeout=3600):
            second[name] = page + 1
            break
    print(f"Django, {name} cache: second holder after {second.get(name)} other entries")

cache = diskcache.Cache(f"{folder}/diskcache", size_limit=2**20)
first = diskcache.Lock(cache, "lock")
first.acquire()
other = diskcache.Lock(cache, "lock")
assert other.locked()
for page in range(2000):
    cache.set(f"page-{page}", b"x" * 4096)
    if not other.locked():
        second["diskcache"] = page + 1
        break
print("diskcache.Lock: free after", second.get("diskcache"), "other entries; it was never released")
sys.exit(None if len(second) == 4 else "the behaviour has changed")
PYTHON
