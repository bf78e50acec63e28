"""The environment variables that tell a command which lock it runs under."""

from __future__ import annotations

PATH_VARIABLE = "ZKLOCK_PATH"
TOKEN_VARIABLE = "ZKLOCK_TOKEN"
HELD_VARIABLE = "ZKLOCK_HELD"
