"""`python -m local.functions_host`: run a function app until Ctrl-C or SIGTERM."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from local.functions_host.errors import HostStartFailed
from local.functions_host.functions import HTTP_TRIGGER
from local.functions_host.host import FunctionsHost
from local.functions_host.logs import configure_logging
from local.functions_host.services import HostOptions

DEFAULT_PORT = 7071
KEYS_FILE = Path(".local") / "master_key"
_THREAD_END_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the app; return the process's exit code."""
    options = _parse(arguments)
    configure_logging(options.log)
    try:
        host_options = HostOptions(
            options.port, drain_seconds=options.drain_seconds, keys_file=options.keys
        )
        asyncio.run(_run(FunctionsHost(options.app, options=host_options), options.keys))
    except HostStartFailed as error:
        print(error, file=sys.stderr)
        return 1
    _end_threads()
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m local.functions_host", description=__doc__)
    parser.add_argument("--app", type=Path, default=Path(), help="folder of function_app.py")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0 takes a free one")
    parser.add_argument("--log", type=Path, help="log file (default: standard error)")
    parser.add_argument(
        "--keys", type=Path, default=KEYS_FILE, help="file of the master key (default: %(default)s)"
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=HostOptions().drain_seconds,
        help="how long running invocations may take to end at a stop",
    )
    return parser.parse_args(arguments)


async def _run(host: FunctionsHost, keys_file: Path) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # Windows' event loop has none; there Ctrl-C ends the process.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await host.start()
    try:
        _print_functions(host)
        _print_keys(host, keys_file)
        print(f"Functions host listening on {host.url} (Ctrl-C stops)", flush=True)
        await stop.wait()
    finally:
        await host.stop()


def _print_functions(host: FunctionsHost) -> None:
    for endpoint in host.endpoints:
        print(f"  {endpoint.function.name}: {endpoint.description}")
    for function in host.functions:
        if function.trigger.kind != HTTP_TRIGGER:
            print(f"  {function.name}: {function.trigger.text('type')}")


def _print_keys(host: FunctionsHost, keys_file: Path) -> None:
    print(f"Every function: ?code={host.keys.host} or the header x-functions-key")
    print(f"/admin: the key in {keys_file}")


def _end_threads() -> None:
    """A synchronous function that hangs must not keep the process from ending."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    lasting = [each for each in others if not each.daemon]
    for each in lasting:
        each.join(_THREAD_END_SECONDS)
    if any(each.is_alive() for each in lasting):
        logging.shutdown()
        sys.stdout.flush()
        os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
