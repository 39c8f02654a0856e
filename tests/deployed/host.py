"""Runs the local Functions host in the environment of a deployed app; see `trust`."""

import sys

from local.functions_host.__main__ import main
from tests.deployed import trust

if __name__ == "__main__":
    trust.this_machine()
    sys.exit(main())
