"""The key by which two copies of one record are known.

Azure promises no unique id of an exported record, and repeats records: in a file after a retry, or
in a later one. Two copies agree in everything that the application sent, in whatever order; two
records that agree in all of it, to a tenth of a microsecond, are one. What the service adds on the
way, such as _BilledSize or an ingestion time, may differ between copies and is left out. A client
that writes whole milliseconds can send true twins that look like copies; a property such as a
message id tells them apart.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from shared.sampling.fields import Repeating


def natural_key(parts: Sequence[object]) -> str:
    """32 hexadecimal digits; ``parts`` must be what JSON can hold. Order of names is no matter."""
    canonical = _canonical([_all_entries(part) for part in parts])
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _all_entries(part: object) -> object:
    """Of an object that has a name twice, too: records that differ in any of them are no copies."""
    if not isinstance(part, Repeating):
        return part
    return sorted([name, _canonical(value)] for name, value in part.entries)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
