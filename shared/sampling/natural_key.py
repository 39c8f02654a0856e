"""Computes the key that identifies copies of the same record.

Azure exports records more than once, in the same file after a retry, in a later file or by a second
export rule, and gives them no unique ID. Copies agree in all fields that the application sent, in
any order. Records that agree in all of these fields, including a time with a resolution of 0.1 µs,
count as copies. Fields that are added on delivery, such as _BilledSize or an ingestion time, may
differ between copies and are left out.

A client that writes times in whole milliseconds can send distinct records that look like copies. To
distinguish them, add a property such as a message ID.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence


def natural_key(parts: Sequence[object]) -> str:
    """A hash of 32 hexadecimal digits. ``parts`` are JSON values; the order of names is ignored."""
    canonical = json.dumps(list(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
