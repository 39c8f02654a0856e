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
LOCAL_SETTINGS = "local.settings.json"
_THREAD_END_SECONDS = 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the app and return the exit code of the process."""
    options = _parse(arguments)
    configure_logging(options.log)
    if options.end_with_input:
        threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        host_options = HostOptions(
            options.port, drain_seconds=options.drain_seconds, keys_file=options.keys
        )
        failure = asyncio.run(_run(FunctionsHost(options.app, options=host_options), options.keys))
    except HostStartFailed as error:
        print(error, file=sys.stderr)
        if "SettingsError" in str(error) and not (options.app / LOCAL_SETTINGS).exists():
            print(
                f"There is no {LOCAL_SETTINGS} in {options.app.resolve()}. "
                f"Copy {LOCAL_SETTINGS}.example to it and fill it in.",
                file=sys.stderr,
            )
        return 1
    if failure:
        print(f"The host ended: {failure}", file=sys.stderr)
    _end_threads(1 if failure else 0)
    return 1 if failure else 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m local.functions_host", description=__doc__)
    parser.add_argument(
        "--app", type=Path, default=Path(), help="folder with function_app.py (default: this one)"
    )
    parser.add_argument(
        "--port", type=int, default=DEFAULT_PORT, help="0 takes a free port (default: %(default)s)"
    )
    parser.add_argument("--log", type=Path, help="log file (default: standard error)")
    parser.add_argument(
        "--keys", type=Path, default=KEYS_FILE, help="file of the master key (default: %(default)s)"
    )
    parser.add_argument(
        "--drain-seconds",
        type=float,
        default=HostOptions().drain_seconds,
        help="how long running invocations may take at shutdown (default: %(default)s)",
    )
    parser.add_argument(
        "--end-with-input",
        action="store_true",
        help="end when standard input closes, so that no host outlives the program that started it",
    )
    return parser.parse_args(arguments)


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


async def _run(host: FunctionsHost, keys_file: Path) -> str:
    """Run until a signal. Returns why the host ended without one; empty after a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        # The event loop of Windows has no signal handlers; there, Ctrl-C ends the process.
        with contextlib.suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await host.start()
    failed = asyncio.create_task(host.failed())
    stopped = asyncio.create_task(stop.wait())
    try:
        if host.load_error:
            print(f"{host.load_error}\n0 functions found: every route answers 404")
        _print_functions(host)
        _print_keys(host, keys_file)
        print(f"Functions host listening on {host.url} (press Ctrl-C to stop)", flush=True)
        await asyncio.wait([failed, stopped], return_when=asyncio.FIRST_COMPLETED)
        return failed.result() if failed.done() else ""
    finally:
        failed.cancel()
        stopped.cancel()
        await host.stop(drain=not host.ended)


def _print_functions(host: FunctionsHost) -> None:
    for endpoint in host.endpoints:
        print(f"  {endpoint.function.name}: {endpoint.description}")
    for function in host.functions:
        if function.trigger.kind != HTTP_TRIGGER:
            print(f"  {function.name}: {function.trigger.text('type')}")


def _print_keys(host: FunctionsHost, keys_file: Path) -> None:
    print(f"Key for every function: ?code={host.keys.host} or the header x-functions-key")
    print(f"Key for /admin: in {keys_file}")


def _end_threads(code: int) -> None:
    """End the process although a synchronous function hangs in its thread."""
    others = [each for each in threading.enumerate() if each is not threading.main_thread()]
    lasting = [each for each in others if not each.daemon]
    for each in lasting:
        each.join(_THREAD_END_SECONDS)
    if any(each.is_alive() for each in lasting):
        logging.shutdown()
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
