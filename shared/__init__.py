"""The product."""

import signal
import sys
from contextlib import suppress

if sys.argv[:1] == [
    "-m"
]:  # a command line is still being imported: nothing to tidy up, or to trace
    with suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGINT, signal.SIG_DFL)
