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


def natural_key(parts: Sequence[object]) -> str:
    """32 hexadecimal digits; ``parts`` must be what JSON can hold. Order of names is no matter."""
    canonical = json.dumps(list(parts), sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(canonical.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
