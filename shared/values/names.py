"""What names may look like, wherever they are declared."""

from __future__ import annotations

import re

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,99}")
"""Names become table keys, which bear neither slashes nor question marks nor number signs."""

UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
