"""The code of the how-to pages, as it stands there, importable by every process of a test."""

from __future__ import annotations

import os
import re
import textwrap
from pathlib import Path
from typing import Any

# The pages take these from their surroundings, in whatever process they run.
os.environ.update(
    AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_DEFAULT_REGION="us-east-1"
)

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    """Return the Python code of a page of the documentation."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^( *)```python\n(.*?)^\1```$", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


def _define(page: str, number: int) -> None:
    exec(compile(blocks(page)[number], page, "exec"), globals())


_define("howto/write-a-guard.md", 0)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"no page defines {name}")
