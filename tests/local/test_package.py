"""The deployment package: its content, and that it runs with its declared requirements."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from importlib.metadata import files
from pathlib import Path

import pytest

from local.package import UnclearPattern, deployed_files, ignores, main, write_package
from tests.bindings.test_functions_and_keys import HTTP, OF_SENDERS, OTHERS
from tests.docs.test_docs import EXAMPLE
from tests.settings.test_settings import SINGLE

ROOT = Path(__file__).parents[2]
TEXTS = ("function_app.py", "scaling_rules.py", "shared", ".funcignore")
INDEXING_SECONDS_MAX = 2.0
TURNS = 3
WORKER_LIBRARY = ("azure-functions-runtime", "azurefunctions-extensions-base")
"""Provided by the platform, so not a requirement of the app."""

JOB = {"TrendsSubmitter": "local", "TrendsInput": "in", "TrendsOutput": "out"}
HUB = {"EventHubConnection__fullyQualifiedNamespace": "hubs.servicebus.windows.net"}
INDEX = """
import asyncio, json, pathlib, sys, time, types
root, sys.path = sys.argv[1], sys.argv[2:4] + sys.path
for name in ("local", "local.functions_host"):  # only one module of the local host is imported
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(pathlib.Path(sys.argv[4], *name.split(".")))]
start = time.process_time()  # CPU time, so that other programs do not count
import local.functions_host.worker as worker
functions = asyncio.run(worker.Worker(pathlib.Path(root)).load())
seconds = time.process_time() - start
paths = [getattr(module, "__file__", None) or "" for module in list(sys.modules.values())]
print(json.dumps([sorted(f.name for f in functions), seconds, paths]))
"""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked package."""
    folder = tmp_path_factory.mktemp("deployed")
    assert main([str(folder / "app.zip")]) == 0
    with zipfile.ZipFile(folder / "app.zip") as package:
        package.extractall(folder / "app")
    return folder / "app"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, unpacked: Path) -> Path:
    """A folder with only the packages of the app's requirements.txt."""
    folder = tmp_path_factory.mktemp("packages")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--compile-bytecode"]
    source = ["--requirements", str(unpacked / "requirements.txt"), "--target", str(folder)]
    from_the_cache = subprocess.run([*uv, "--offline", *source], check=False, capture_output=True)
    if from_the_cache.returncode:
        subprocess.run([*uv, *source], check=True, timeout=100)
    return folder


@pytest.fixture(scope="module")
def worker_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("platform")
    for name in WORKER_LIBRARY:
        for file in files(name) or ():
            if file.suffix == ".py":
                copy = folder / file
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(file.read_binary())
    return folder


NOT_DEPLOYED = {"shared/__main__.py", "shared/cli"}
DEPLOYED = {
    "function_app.py",
    "host.json",
    "requirements.txt",
    "scaling_rules.py",
    *(f"requirements/{name}.txt" for name in ("app", "sql")),
    *(
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "shared").rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not NOT_DEPLOYED & {each.as_posix() for each in path.relative_to(ROOT).parents}
        and path.relative_to(ROOT).as_posix() not in NOT_DEPLOYED
    ),
}
RUBBISH = (
    *("build/lib/shared/__init__.py", "dist/app.whl", "app_service_autoscaler.egg-info/PKG-INFO"),
    *(".env", ".env.local", ".vscode/x.json", ".idea/x.xml", ".DS_Store", ".coverage", ".tox/x.py"),
    *(".venv/lib/x.py", "venv/lib/x.py", "env/lib/x.py", "node_modules/x/index.js"),
    *("notebooks/try.ipynb", "notebooks/helper.py", "try.ipynb", "htmlcov/index.html"),
    *("local.settings.json", ".local/settings.json", "trace.csv", "messages.jsonl", "app.zip"),
    *("function_app.pyc", "__pycache__/x.nbi", "backtest.png", "setup.py"),
    *("shared/__pycache__/x.nbi", "shared/values/__pycache__/x.pyc", "shared/values/x.pyc"),
    *("shared/web/.DS_Store", "shared/try.ipynb", "shared/web/node_modules/x/index.js"),
    *("shared/web/.ipynb_checkpoints/page-checkpoint.py", "host.log", "conftest.py"),
)
UNKNOWN_RUBBISH = ("notes.txt", "old/rules.py", "shared/values/text.py.orig", "requirements/x.in")
OWN_MODULES = (
    *("my_events.py", "plans/orders.py", "plans/sub/deep.py"),
    *(
        f"{path.name}_of_mine.py"
        for path in ROOT.iterdir()
        if path.is_dir() and path.name[0] != "."
    ),
)
"""Imported by the rules, or named by a setting. Most begin as the name of a folder does."""


@pytest.fixture
def used_folder(tmp_path: Path) -> Path:
    """A copy of the project in which somebody has worked."""
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in DEPLOYED | set(tracked.stdout.splitlines()) | {".funcignore"}:
        source, copy = ROOT / name, tmp_path / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        if source.is_file():
            copy.write_bytes(source.read_bytes() if name.startswith(TEXTS) else b"")
    for name in RUBBISH + OWN_MODULES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with (tmp_path / "scaling_rules.py").open("a") as rules:
        rules.write("import plans.orders\n")
    return tmp_path


def test_the_package_contains_only_what_the_app_needs(unpacked: Path) -> None:
    files = {path.relative_to(unpacked) for path in unpacked.rglob("*") if path.is_file()}
    # A test that runs the unpacked app leaves its bytecode there.
    assert {path.as_posix() for path in files if "__pycache__" not in path.parts} == DEPLOYED


def test_a_package_from_a_folder_in_which_somebody_has_worked_contains_nothing_else(
    used_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in UNKNOWN_RUBBISH:
        (used_folder / name).parent.mkdir(parents=True, exist_ok=True)
        (used_folder / name).touch()
    assert {path.as_posix() for path in deployed_files(used_folder)} == DEPLOYED | set(OWN_MODULES)
    said = capsys.readouterr().err
    assert [name for name in UNKNOWN_RUBBISH[:3] if name not in said] == []
    assert not any(name in said for name in RUBBISH)


def test_func_and_azd_leave_out_the_same_usual_rubbish(used_folder: Path) -> None:
    """Core Tools matches the beginning of a path. azd reads the patterns as git does."""
    subprocess.run(["git", "init", "--quiet"], cwd=used_folder, check=True)
    listed = ["git", "ls-files", "--others", "--exclude-from=.funcignore"]
    by_azd = subprocess.run(listed, cwd=used_folder, capture_output=True, text=True, check=True)
    ignored = ignores((used_folder / ".funcignore").read_text())
    every = (path for path in used_folder.rglob("*") if path.is_file())
    names = {path.relative_to(used_folder).as_posix() for path in every}
    by_func = {name for name in names if not ignored(name)}
    assert by_func == DEPLOYED | set(OWN_MODULES)
    assert set(by_azd.stdout.splitlines()) == DEPLOYED | set(OWN_MODULES)


def test_the_same_files_produce_the_same_package(tmp_path: Path) -> None:
    for name in ("a.zip", "b.zip"):
        write_package(ROOT, tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_pattern_of_funcignore_starts_at_the_root_and_has_no_sign_that_tools_read_differently(
    tmp_path: Path,
) -> None:
    for path in ("tests/x.py", "shared/tests/y.py", "shared/__pycache__/z.pyc", "a.py", "b.md"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / ".funcignore").write_text("# no tests\n.*\ntests/**\n**/__pycache__/**\n/b.md\n")
    assert {path.as_posix() for path in deployed_files(tmp_path)} == {"a.py", "shared/tests/y.py"}
    for unclear in ("!a.py", "[ab].py", "?.py", "{a,b}.py"):
        (tmp_path / ".funcignore").write_text(f"{unclear}\n")
        with pytest.raises(UnclearPattern, match=re.escape(repr(unclear))):
            deployed_files(tmp_path)


def test_every_function_is_indexed_with_only_the_requirements_in_less_than_two_seconds(
    unpacked: Path, installed: Path, worker_library: Path
) -> None:
    environ = {**EXAMPLE, **SINGLE, "ProcessingPeriodHours": "24", **HUB, **JOB}
    paths = map(str, (unpacked, installed, worker_library, ROOT))
    command = [sys.executable, "-I", "-S", "-c", INDEX, *paths]
    best = float("inf")
    for _ in range(TURNS):  # the first one after an installation reads all files from disk
        done = subprocess.run(
            command, cwd=unpacked, env=environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        names, seconds, loaded = json.loads(done.stdout.splitlines()[-1])
        best = min(best, seconds)
        if best < INDEXING_SECONDS_MAX:
            break
    sys.stdout.write(f"{len(names)} functions indexed in {best:.2f} s\n")
    assert set(names) == {*HTTP, *OTHERS} - OF_SENDERS, "the shipped rules have no QueueMetric"
    of_this_tree = {path for path in loaded if Path(path).is_relative_to(ROOT)}
    helpers = {path for path in of_this_tree if path.startswith(str(ROOT / "local"))}
    assert of_this_tree == helpers, "the app imports modules that are not in its package"
    assert best < INDEXING_SECONDS_MAX
