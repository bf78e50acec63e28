"""The code of the how-to pages, as it stands there, importable by every process of a test."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[3] / "docs"


def blocks(page: str) -> list[str]:
    """Return the Python code of a page of the documentation."""
    text = (DOCS / page).read_text()
    found = re.findall(r"^( *)```python\n(.*?)^\1```$", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


def _define(page: str, number: int) -> None:
    exec(compile(blocks(page)[number], page, "exec"), globals())


_define("howto/fencing-s3.md", 0)
_define("howto/write-a-guard.md", 0)
_define("howto/fencing-dynamodb.md", 0)


def __getattr__(name: str) -> Any:
    raise AttributeError(f"no page defines {name}")
