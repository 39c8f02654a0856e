"""`local/setup.sh` where something is missing. A stand-in interpreter imitates venv and pip."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INTERPRETER = f"""#!/bin/sh
case "$*" in
*"-m venv"*) mkdir -p .venv/bin; cp "$0" .venv/bin/python ;;
*"pip --version"*) ;;
*"pip install"*)
    echo "$*" >> installed
    case "$*" in *"$PIP_FAILS_FOR"*) echo "$PIP_SAYS"; exit "$PIP_CODE" ;; esac ;;
*"import $LACKS"*) exit 1 ;;
*) exec {sys.executable} "$@" ;;
esac
"""
NOT_INSTALLED = "Nothing was installed, because something is missing:\n"
VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
COMPILER = f"sudo apt-get install gcc {VERSION}-dev"
JAVA, CHROMIUM = "Java 17 or newer was not found.", "chromium was not found."
NO_INDEX = (
    "The package index cannot be reached, or lacks a package. Check the network. Behind a proxy, "
    "set\nHTTPS_PROXY (and PIP_CERT if it replaces certificates). For another index, set "
    "PIP_INDEX_URL.\n"
)
REFUSED = "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError()'"
NO_SPACE = "ERROR: Could not install packages due to an OSError: No space left on device"


@dataclass
class Machine:
    """A folder with the script, and the tools of a machine that has everything."""

    folder: Path
    tools: Path
    environment: dict[str, str]

    def tool(self, name: str, script: str = "") -> None:
        path = self.tools / name
        path.write_text(script or "#!/bin/sh\n")
        path.chmod(0o755)

    def setup(self, *names: str, **settings: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **settings}
        command = ["sh", "local/setup.sh", *names]
        return subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    @property
    def installed(self) -> str:
        log = self.folder / "installed"
        return log.read_text() if log.exists() else ""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    tools = tmp_path / "tools"
    for folder in (tools, tmp_path / "local"):
        folder.mkdir()
    shutil.copy(ROOT / "local" / "setup.sh", tmp_path / "local")
    for name in ("sh", "sed", "awk", "grep", "head", "tail", "rm", "mkdir", "cp", "id"):
        (tools / name).symlink_to(str(shutil.which(name)))
    environment = {"PATH": str(tools), "CC": str(tools / "gcc"), "LACKS": "nothing"}
    environment |= {"PIP_FAILS_FOR": "no package", "PIP_SAYS": "", "PIP_CODE": "1"}
    machine = Machine(tmp_path, tools, environment)
    machine.tool("python3", INTERPRETER)
    machine.tool("java", "#!/bin/sh\necho 'openjdk version \"17.0.1\"' >&2")
    for name in ("gcc", "node", "npm", "chromium"):
        machine.tool(name)
    return machine


PIP = "-m pip install --quiet --disable-pip-version-check"
HOST = f"{PIP} --no-deps --ignore-requires-python -r requirements/host.txt\n"
NPM_CI = "ci --loglevel=error --no-audit --no-fund --prefix local\n"


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["dev"], "-r requirements/dev.txt"),
        (["app", "local"], "-r requirements/app.txt -r requirements/local.txt"),
    ],
)
def test_a_machine_that_has_everything_gets_the_locked_versions_without_a_word_of_what_is_missing(
    machine: Machine, names: list[str], first: str
) -> None:
    machine.tool("npm", '#!/bin/sh\n[ "$1" = -v ] || echo "$*" >> installed\n')
    done = machine.setup(*names)
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.installed == f"{PIP} {first}\n{HOST}{NPM_CI}"


@pytest.mark.parametrize(
    ("target", "installed"),
    [
        ("setup", ["dev"]),
        ("run", ["app local", "amqp"]),
        ("night", ["app local spark", "amqp"]),
        ("package", ["dev"]),
    ],
)
def test_a_target_of_make_installs_what_it_needs(target: str, installed: list[str]) -> None:
    dry = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True)
    assert re.findall(r"^sh local/setup.sh (.*)$", done.stdout, re.MULTILINE) == installed


@pytest.mark.parametrize(
    ("absent", "names", "blocks", "said"),
    [
        (["gcc"], ["dev"], True, [COMPILER]),
        (["gcc", "java", "chromium"], ["dev"], True, [COMPILER, JAVA, CHROMIUM]),
        (["venv", "gcc"], ["dev"], True, [f"{VERSION}-venv", COMPILER]),
        (["java", "chromium"], ["dev"], False, [JAVA, CHROMIUM]),
        (["java"], ["app", "local", "spark"], False, [JAVA]),
        (["gcc", "java", "chromium"], ["app", "local"], False, []),
    ],
)
def test_all_that_is_missing_is_named_before_anything_is_installed(
    machine: Machine, absent: list[str], names: list[str], blocks: bool, said: list[str]
) -> None:
    for tool in set(absent) - {"venv"}:
        (machine.tools / tool).unlink()
    lacks = "ensurepip, venv" if "venv" in absent else "nothing"
    done = machine.setup(*names, LACKS=lacks)
    assert [each for each in said if each not in done.stderr] == []
    assert (done.returncode, NOT_INSTALLED in done.stderr) == (int(blocks), blocks)
    assert bool(machine.installed) is not blocks
    assert bool(done.stderr) is bool(said)


@pytest.mark.parametrize("python", ["", "/no/such/python"])
def test_an_old_or_absent_python_is_named(machine: Machine, python: str) -> None:
    machine.tool("python3", "#!/bin/sh\nexit 1\n")
    done = machine.setup("app", "local", PYTHON=python)
    where = f" as {python}" if python else ""
    assert done.returncode == 1
    assert done.stderr.startswith(f"Python 3.11 or newer was not found{where}. Install it:")


@pytest.mark.parametrize(
    ("failing", "said", "explained"),
    [
        ("requirements/app.txt", REFUSED, NO_INDEX),
        ("app.txt", "ERROR: No matching distribution (from versions: none)", NO_INDEX),
        ("requirements/host.txt", NO_SPACE, f"pip could not install the packages:\n{NO_SPACE}\n"),
    ],
)
def test_a_failed_installation_is_explained_in_a_few_lines(
    machine: Machine, failing: str, said: str, explained: str
) -> None:
    wall = f"{said}\n" + "building\n" * 300
    done = machine.setup("app", "local", PIP_FAILS_FOR=failing, PIP_SAYS=wall)
    assert done.returncode == 1
    assert explained in done.stderr
    assert len(done.stderr.splitlines()) <= 4
    assert (machine.folder / ".venv" / "pip.log").read_text().startswith(said)


def test_a_failed_installation_of_azurite_is_explained(machine: Machine) -> None:
    machine.tool("npm", "#!/bin/sh\necho npm error code ECONNREFUSED >&2\nexit 1\n")
    done = machine.setup("app", "local")
    assert done.returncode == 1
    assert "npm could not install Azurite:\nnpm error code ECONNREFUSED\n" in done.stderr
    assert "For another registry, set npm_config_registry." in done.stderr


@pytest.mark.parametrize(
    ("lacks", "compiler", "tried"),
    [("proton", True, True), ("proton", False, False), ("nothing", True, False)],
)
def test_the_amqp_library_is_compiled_when_it_is_missing_and_a_compiler_is_there(
    machine: Machine, lacks: str, compiler: bool, tried: bool
) -> None:
    """Whatever happens, the demo starts afterwards and says what is off."""
    machine.setup("app", "local")
    if not compiler:
        (machine.tools / "gcc").unlink()
    done = machine.setup("amqp", LACKS=lacks)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("-r requirements/amqp.txt" in machine.installed) is tried
    failed = machine.setup("amqp", LACKS=lacks, PIP_FAILS_FOR="amqp", PIP_SAYS=NO_SPACE)
    assert (failed.returncode, NO_SPACE in failed.stderr) == (0, tried)
