"""The product."""

import signal
import sys
from contextlib import suppress

# A command line is still being imported: nothing to tidy up yet, and no trace to show at Ctrl-C.
if sys.argv[:1] == ["-m"]:
    with suppress(ValueError):  # only the main thread may
        signal.signal(signal.SIGINT, signal.SIG_DFL)
