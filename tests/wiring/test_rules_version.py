"""The version of the rules: what changes it, and what does not."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from shared.autoscaling.acting.activation import LOCAL
from shared.settings.fields import settings_of
from shared.settings.scaling import RuleSettings, SingleResource
from shared.wiring.rules_version import _sources, rules_version
from tests.settings.test_arrival import ROWS

FILES = {
    "scaling_rules.py": (
        "import os\nfrom my_rules.policies import policy\nfrom shared.autoscaling import Limits\n"
        "LIMITS = Limits(1, int(os.environ.get('MyMaximum', 5))), os.environ.get('MyApiKey')\n"
        "BUS = os.environ.get('Orders')\n"
    ),
    "my_rules/__init__.py": "",
    "my_rules/policies.py": "from . import numbers\npolicy = numbers.STEP\n"
    "try:\n    from ... import elsewhere\nexcept ImportError:\n    pass\n",
    "my_rules/numbers.py": "STEP = 1\n",
    "unrelated.py": "A = 1\n",
}
VALUES = {"MyMaximum": "5", "MyApiKey": "a", "Orders": "Endpoint=sb://a/;SharedAccessKey=b"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(tmp_path)
    kept = dict(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - set(kept):
        del sys.modules[name]
    sys.modules.update(kept)


def version(environ: Mapping[str, str] = VALUES) -> str:
    for name in [n for n in sys.modules if n.startswith(("scaling_rules", "my_rules"))]:
        del sys.modules[name]
    importlib.invalidate_caches()
    importlib.import_module("scaling_rules")
    return rules_version(environ)


@pytest.mark.parametrize(
    ("file", "text", "changed"),
    [
        ("scaling_rules.py", FILES["scaling_rules.py"] + "# a comment\n", True),
        ("my_rules/policies.py", "from .numbers import STEP as policy\n", True),
        ("my_rules/numbers.py", "STEP = 2\n", True),
        ("my_rules/__init__.py", "A = 2\n", True),
        ("scaling_rules.py", FILES["scaling_rules.py"].replace("\n", "\r\n"), False),
        ("scaling_rules.py", FILES["scaling_rules.py"], False),
        ("unrelated.py", "A = 2\n", False),
    ],
)
def test_the_version_changes_with_the_source_code_of_the_rules(
    folder: Path, file: str, text: str, changed: bool
) -> None:
    before = version()
    (folder / file).write_bytes(text.encode())
    assert (version() != before) is changed


@pytest.mark.parametrize("first", [b"# Gesch\xe4ft\n", b"# -*- coding: cp1252 -*- Gesch\xe4ft\n"])
def test_rules_that_python_imports_have_a_version_in_any_encoding(
    folder: Path, first: bytes
) -> None:
    """Python allows any bytes in comments, such as those of an editor on Windows."""
    before, file = version(), folder / "scaling_rules.py"
    file.write_bytes(first + file.read_bytes())
    assert version() != before


@pytest.mark.parametrize(
    ("name", "value", "changed"),
    [
        ("MaximumCapacity", "12", True),
        ("MaximumCapacity", "10", False),  # the default
        ("MaximumCapacity", " 10 ", False),
        ("MaximumCapacity", " ", False),
        ("ThresholdUp", "12", True),
        ("DryRun", "true", True),
        ("MyMaximum", "6", True),
        ("NamedNowhere", "6", False),
        ("ReconcilerSchedule", "0 * * * * *", False),
        # secrets, which might be guessed from the hash
        ("MyApiKey", "b", False),
        ("Orders", "Endpoint=sb://a/;SharedAccessKey=c", False),
        ("ServiceBusConnection", "Endpoint=sb://a/;SharedAccessKey=c", False),
        ("AzureWebJobsStorage", "AccountKey=c", False),
    ],
)
def test_the_version_changes_with_the_settings_of_the_rules_but_not_with_secrets(
    folder: Path, name: str, value: str, changed: bool
) -> None:
    assert (version({**VALUES, name: value}) != version()) is changed


@pytest.mark.parametrize("name", [s.name for s in settings_of(SingleResource, RuleSettings)])
def test_each_setting_of_the_default_rules_changes_the_version(folder: Path, name: str) -> None:
    assert version({**VALUES, name: ROWS[name].value}) != version()


def test_the_version_of_the_shipped_rules_is_that_of_their_own_file() -> None:
    """Another version of the app does not make other rules of it."""
    importlib.import_module("scaling_rules")
    sources, _ = _sources()
    assert set(sources) == {"scaling_rules"}


def test_a_copy_outside_azure_has_a_local_version_of_the_same_hash() -> None:
    deployed = rules_version({**VALUES, "WEBSITE_SITE_NAME": "my-app"})
    assert re.fullmatch("[0-9a-f]{12}", deployed)
    local = rules_version({**VALUES, "WEBSITE_HOSTNAME": "localhost:7071"})
    assert local == f"{LOCAL}{deployed}"
