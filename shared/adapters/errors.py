"""What a failed call to Table Storage means to ingestion."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from azure.core.exceptions import AzureError, HttpResponseError

from shared.ingestion.errors import AccountingBroken, StoreUnavailable

REFUSED_FOR_GOOD = (400, 413)
"""The request itself is not taken: too large, or of a form that no repetition mends."""


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Whatever the client raises as StoreUnavailable, or AccountingBroken where it never passes."""
    try:
        yield
    except HttpResponseError as error:
        if error.status_code in REFUSED_FOR_GOOD:
            raise AccountingBroken(f"{what}: {error.message}") from error
        raise StoreUnavailable(f"{what}: {error.message}") from error
    except (AzureError, OSError) as error:
        raise StoreUnavailable(f"{what}: {error}") from error
