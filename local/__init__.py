"""The whole system on one machine; never deployed."""

import shared  # noqa: F401  first, for what it says about Ctrl-C
