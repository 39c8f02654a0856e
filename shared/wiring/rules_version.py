"""Computes the version of the rules: a hash of their source code and of the settings they read."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from pathlib import Path
from types import ModuleType

from shared.autoscaling.acting.activation import LOCAL
from shared.settings.fields import settings_of
from shared.settings.scaling import RuleSettings, SingleResource
from shared.values.redaction import redacted

RULES = "scaling_rules"
DIGITS = 12
SECRET = re.compile("key|secret|token|passw|pwd|connection", re.IGNORECASE)


def rules_version(environ: Mapping[str, str]) -> str:
    """The version of the rules in this process, which must have been imported: a hash of
    scaling_rules.py, the modules of the app's folder that it imports, the settings of the default
    rules, and the settings that the source code names. Line endings do not matter. Secrets are left
    out, because they might be guessed from the hash. Outside Azure, the version is a local one."""
    sources, texts = _sources()
    defaults = dict.fromkeys(texts & environ.keys(), "")
    defaults |= {each.name: each.default for each in settings_of(SingleResource, RuleSettings)}
    values = {name: environ.get(name, "").strip() or text for name, text in defaults.items()}
    public = {n: v for n, v in values.items() if not SECRET.search(n) and redacted(v) == v}
    content = json.dumps([sources, public], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:DIGITS]
    return digest if environ.get("WEBSITE_SITE_NAME") else LOCAL + digest


def _sources() -> tuple[Mapping[str, str], set[str]]:
    """The source code of the rules by module, and all texts in it."""
    sources, texts, names = dict[str, str](), set[str](), [RULES]
    while names:
        name = names.pop()
        if name in sources or (path := _own_file(name)) is None:
            continue
        sources[name] = path.read_text("utf-8-sig", "replace")  # comments may have any bytes
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                with suppress(ImportError):  # a relative import that the rules catch themselves
                    names += _imported(node, sys.modules[name].__package__)
    return sources, texts


def _imported(node: ast.Import | ast.ImportFrom, package: str | None) -> Iterator[str]:
    """The names of the modules that a statement may import, and of the packages they are in."""
    names = [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        source = resolve_name("." * node.level + (node.module or ""), package)
        names = [f"{source}.{name}" for name in names]
    for name in names:
        parts = name.split(".")
        yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _own_file(name: str) -> Path | None:
    """The file of a module that the user wrote; None if it belongs to the app or is installed."""
    rules, module = sys.modules.get(RULES), sys.modules.get(name)
    folder, path = Path(_file(rules)).parent, Path(_file(module))
    if not path.is_relative_to(folder) or path.suffix != ".py" or not path.is_file():
        return None
    parts = path.relative_to(folder).parts
    installed = parts[0].startswith(".") or "site-packages" in parts
    return None if parts[0] == "shared" or installed else path


def _file(module: ModuleType | None) -> str:
    return getattr(module, "__file__", None) or ""
