"""The wheel: what is in it, and that ``autoscaler`` runs where nothing else of the project is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email import message_from_bytes
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.test_docs import README

ROOT = Path(__file__).parents[2]
BUILT = ("setup.py", "pyproject.toml", "README.md", "LICENSE", "requirements", "local/data")
APP = ("shared", "backtest", "spark_jobs", "local/data")
WRONG = 2
ENVIRON = {
    "PATH": os.environ["PATH"],
    "NUMBA_DISABLE_JIT": "1",  # compiling would take longer than these few minutes of a trace
    "AzureWebJobsStorage": "UseDevelopmentStorage=true",
    "ServiceBusConnection": "Endpoint=sb://x;SharedAccessKeyName=x;SharedAccessKey=eA==",
}
RULES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
TRACE = "time,arrivals\n" + "".join(f"2026-03-02T08:{m:02}:00Z,{40 + m}\n" for m in range(12))
Run = Callable[..., subprocess.CompletedProcess[str]]


def run(
    command: Sequence[str | Path], folder: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=ENVIRON | more, capture_output=True, text=True, check=False
    )


def files(folder: Path) -> set[str]:
    found = (path for path in folder.rglob("*") if "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in found if path.is_file()}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, because a build leaves folders behind."""
    copy, built = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("built")
    for name in {*BUILT, *APP, "appservice_autoscaler"}:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, copy / name)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = run([sys.executable, "-c", build, built], copy)
    assert done.returncode == 0, done.stderr[-2000:]
    return next(built.glob("*.whl"))


@pytest.fixture(scope="session")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and nothing else."""
    return environment(wheel, tmp_path_factory.mktemp("bare"))


@pytest.fixture(scope="session")
def complete(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and the packages of this one."""
    folder = tmp_path_factory.mktemp("complete")
    programs = environment(wheel, folder)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    (site,) = folder.glob("lib/*/site-packages")
    (site / "packages.pth").write_text("\n".join(packages))
    return programs


def environment(wheel: Path, folder: Path) -> Path:
    uv: list[str | Path] = [sys.executable, "-m", "uv", "--quiet", "--offline"]
    for command in (
        [*uv, "venv", "--clear", "--python", sys.executable, folder],
        [*uv, "pip", "install", "--no-deps", "--python", folder / "bin" / "python", wheel],
    ):
        done = run(command, folder)
        assert done.returncode == 0, done.stderr
    return folder / "bin"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, with a package that has the name of one of the app's."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "__init__.py").write_text("raise ImportError('the shared of the user')")
    (tmp_path / "scaling_rules.py").write_text(RULES)
    (tmp_path / "trace.csv").write_text(TRACE)
    return tmp_path


def test_the_wheel_has_every_file_of_the_app_and_the_types_of_shared(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = {name for name in content.namelist() if ".dist-info/" not in name}
        (metadata,) = (name for name in content.namelist() if name.endswith("/METADATA"))
        said = message_from_bytes(content.read(metadata))
    own = {f"appservice_autoscaler/{name}" for name in files(ROOT / "appservice_autoscaler")}
    app = {f"appservice_autoscaler/_app/{f}/{name}" for f in APP for name in files(ROOT / f)}
    stubs = {f"shared-stubs/{name}i" for name in files(ROOT / "shared") if name.endswith(".py")}
    assert names == own | app | stubs
    required = [Requirement(text) for text in said.get_all("Requires-Dist", ())]
    assert all(each.marker for each in required), "a package that everyone gets"
    listed = (ROOT / "spark_jobs" / "requirements.txt").read_text().splitlines()
    needed = {Requirement(line).name for line in listed if not line.startswith("#")}
    on_a_cluster = {r.name for r in required if r.marker and r.marker.evaluate({"extra": "spark"})}
    assert on_a_cluster == needed


def test_rules_are_validated_and_replayed_beside_a_folder_that_is_called_shared(
    complete: Path, project: Path
) -> None:
    valid = run([complete / "autoscaler", "validate"], project)
    assert (valid.returncode, valid.stderr) == (0, "")
    assert "The rules and settings are valid (workers)" in valid.stdout
    replayed = run([complete / "autoscaler", "backtest", "trace.csv"], project)
    assert replayed.returncode == 0, replayed.stderr
    assert "lower bound" in replayed.stdout


def test_a_process_that_a_command_starts_has_the_modules_of_the_app(
    complete: Path, project: Path
) -> None:
    start = (
        "import subprocess, sys; from appservice_autoscaler import use_app; use_app();"
        "import shared.autoscaling.testing, scaling_rules;"
        "sys.exit(subprocess.call([sys.executable, '-m', 'spark_jobs.event_trends', '--help']))"
    )
    for given in ({}, {"PYTHONPATH": str(project)}):
        done = run([complete / "python", "-c", start], project, **given)
        assert done.returncode == 0, done.stderr
        assert "--input" in done.stdout


def test_the_bundled_trace_and_the_name_of_the_command_are_those_of_the_wheel(
    complete: Path, tmp_path: Path
) -> None:
    done = run([complete / "autoscaler", "backtest", "sample"], tmp_path)
    assert (done.returncode, done.stdout) == (WRONG, "")
    assert done.stderr.startswith("autoscaler backtest: scaling_rules.py: the file does not exist.")
    read = "from backtest.traces.reading import *; print(load_trace(trace_file('sample')).minutes)"
    use = "from appservice_autoscaler import use_app; use_app()"
    assert run([complete / "python", "-c", f"{use}; {read}"], tmp_path).stdout == "4320\n"


def test_an_audit_of_the_example_runs_from_the_wheel(complete: Path, tmp_path: Path) -> None:
    compiled = {"NUMBA_DISABLE_JIT": "0"}
    done = run(
        [complete / "autoscaler", "audit", "--example", "--html", "a.html"], tmp_path, **compiled
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "proven bound" in done.stdout
    assert (tmp_path / "a.html").exists()
    wrong = run([complete / "autoscaler", "backtest", "audit", "--from", "no.json"], tmp_path)
    assert (wrong.returncode, wrong.stdout) == (WRONG, "")
    assert wrong.stderr == "autoscaler backtest: no.json: No such file or directory\n"


def test_a_type_checker_knows_the_types_of_a_rules_file(bare: Path, project: Path) -> None:
    wrong = RULES.replace("minimum=2", "minimum='two'")
    (project / "scaling_rules.py").write_text(wrong)
    mypy: list[str | Path] = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        bare / "python",
    ]
    done = run([*mypy, "--cache-dir", os.devnull, "scaling_rules.py"], project)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert '"minimum" to "Limits" has incompatible type "str"' in errors[0]


def test_a_folder_without_rules_is_named(complete: Path, tmp_path: Path) -> None:
    done = run([complete / "autoscaler", "validate"], tmp_path)
    assert (done.returncode, done.stdout) == (WRONG, "")
    assert f"there is no scaling_rules.py here ({tmp_path})" in done.stderr
    assert "requirements/app.in" not in done.stderr


def test_an_import_from_the_users_own_shared_says_whose_name_it_is(
    complete: Path, project: Path
) -> None:
    (project / "scaling_rules.py").write_text("from shared.helpers import rate\n")
    done = run([complete / "autoscaler", "validate"], project)
    assert "shared is a package of the app: give your folder another name" in done.stderr


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["autoscaler", "validate"], "local"),
        (["autoscaler", "backtest", "sample"], "backtest"),
        (["autoscaler", "event-trends"], "spark"),
        (["python", "-m", "spark_jobs.event_trends"], "spark"),
        (["python", "-m", "spark_jobs.check"], "spark"),
        (["python", "-m", "shared"], "local"),
        (["python", "-m", "backtest"], "backtest"),
        (["python", "-m", "local"], "local"),
    ],
    ids=" ".join,
)
def test_a_package_that_is_missing_is_named_in_one_line(
    command: list[str], extra: str, bare: Path, tmp_path: Path
) -> None:
    folder = ROOT if "-m" in command else tmp_path
    done = run([bare / command[0], *command[1:]], folder, PYTHONDONTWRITEBYTECODE="1")
    assert (done.returncode, done.stdout) == (WRONG, "")
    assert re.fullmatch(
        rf"\w+ is not installed\. It comes with app-service-autoscaler\[{extra}\]; .*\n",
        done.stderr,
    )


def test_the_backtest_names_a_package_that_only_a_part_of_it_needs(
    complete: Path, project: Path
) -> None:
    """The imports of a setting need tzlocal, those of a plot matplotlib."""
    for package in ("tzlocal", "matplotlib"):
        hidden = f"import sys; sys.modules['{package}'] = None"
        given = "sys.argv[1:] = ['backtest', 'trace.csv', '--plot', 'a.png']"
        start = "from appservice_autoscaler.__main__ import main; main()"
        done = run([complete / "python", "-c", f"{hidden}; {given}; {start}"], project)
        assert done.returncode == WRONG
        assert done.stderr.endswith("make setup installs it.\n")
        assert package in done.stderr.splitlines()[-1]
