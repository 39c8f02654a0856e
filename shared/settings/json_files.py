"""JSON files that people edit, read as Azure Functions Core Tools reads them.

Such a file may begin with a byte order mark, and may contain comments and trailing commas. It may
be UTF-16, as Windows PowerShell writes it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENTS = re.compile(rf"{_STRING}|//[^\n]*|/\*.*?\*/", re.DOTALL)
_TRAILING_COMMAS = re.compile(rf"{_STRING}|,(?=\s*[}}\]])", re.DOTALL)


def read_json(path: Path) -> Any:
    """The value in the file. Raises OSError, or ValueError if it is not JSON.

    Comments become spaces, so that an error names the line and column of the file.
    """
    data = path.read_bytes()
    text = data.decode(json.detect_encoding(data)).removeprefix("\ufeff")
    for pattern in (_COMMENTS, _TRAILING_COMMAS):
        text = pattern.sub(_blank, text)
    return json.loads(text)


def _blank(match: re.Match[str]) -> str:
    found = match[0]
    return found if found.startswith('"') else re.sub(r"[^\n]", " ", found)
