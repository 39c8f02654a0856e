"""Finds the autoscale setting in a JSON document: a resource, a list, or an ARM template. Pure.

Template expressions are not evaluated. Only a reference to a parameter with a literal default or to
a literal variable is replaced with that value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from backtest.errors import BacktestError
from shared.values.text import one_line

EXPORT = "az monitor autoscale show --resource-group GROUP --name NAME --output json > setting.json"
WRITE = f"Write it with: {EXPORT}"
DEPLOY = f"Deploy it, and convert the output of: {EXPORT}"
KIND = "microsoft.insights/autoscalesettings"
DEPLOYMENT = "microsoft.resources/deployments"
TERRAFORM = "azurerm_monitor_autoscale_setting"
EXPRESSION = re.compile(r"\[\s*[A-Za-z][\w.]*\(.*\]\s*", re.DOTALL)
REFERENCE = re.compile(r"\[\s*(parameters|variables)\(\s*'([^']+)'\s*\)\s*\]\s*", re.IGNORECASE)
REFERENCES_MAX = 20
"""References to references beyond this number are taken for a circle."""
READ = ("profiles", "targetresourceuri")
"""Without these keys there is no setting. The other ones are only mentioned in notes."""


@dataclass(frozen=True, slots=True)
class Found:
    """The properties of the setting, with all keys in lower case, because Azure ignores their case.

    ``left_out`` names what else the document holds.
    """

    properties: Mapping[str, Any]
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


def find(document: Any, name: str | None = None) -> Found:
    """The only setting of the document, or the one with this name or ID."""
    document = _with_lower_keys(document)
    template = document if isinstance(document, dict) else {}
    candidates = list(_candidates(document))
    nested = any(_nested(each) for each in (template, *_resources(template)))
    if not candidates and nested:
        raise BacktestError(
            f"the autoscale setting is in a nested deployment, such as a module of Bicep. {DEPLOY}"
        )
    chosen = _chosen(candidates, document, name)
    if "copy" in chosen:
        raise BacktestError(
            f"the autoscale setting has a copy loop, a template expression. {DEPLOY}"
        )
    properties = chosen.get("properties", chosen)
    if not isinstance(properties, dict):
        properties = {}
    values = _Values(template)
    literal = {key: values.of(value, key) for key, value in properties.items() if key in READ}
    for key in properties.keys() - literal.keys():
        literal[key] = values.mentioned(properties[key], key)
    if "profiles" not in literal:
        raise BacktestError(_none(document))
    notes = [
        f"{name} is read as its default, {one_line(repr(value))}"
        for name, value in values.used.items()
    ]
    if chosen.get("condition", True) is not True:
        notes.append(f"the template deploys the setting only if {chosen['condition']}")
    if template.get("nextlink"):
        notes.append("the list of settings continues at nextLink: that part was not read")
    others = ["the setting in a nested deployment"] if nested else []
    return Found(literal, tuple(notes), (*others, *values.unread))


def _with_lower_keys(document: Any) -> Any:
    try:
        return _lowered(document)
    except RecursionError as error:
        raise BacktestError(f"the JSON is nested too deeply for a setting. {WRITE}") from error


def _lowered(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key).lower(): _lowered(each) for key, each in value.items()}
    return [_lowered(each) for each in value] if isinstance(value, list) else value


def _candidates(document: Any) -> Iterator[Mapping[str, Any]]:
    """The resources that may be autoscale settings."""
    if isinstance(document, dict) and "resources" in document:
        for each in _resources(document):
            if _type(each) == KIND and each.get("existing") is not True:
                yield each
        return
    if isinstance(document, dict):
        listed = document.get("value", document.get("data"))
        document = listed if isinstance(listed, list) else [document]
    if isinstance(document, list):
        yield from (each for each in document if isinstance(each, dict) and _has_profiles(each))


def _has_profiles(resource: Mapping[str, Any]) -> bool:
    properties = resource.get("properties")
    return "profiles" in (properties if isinstance(properties, dict) else resource)


def _resources(template: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The resources of a template: a list, or a dict by symbolic name."""
    resources = template.get("resources")
    listed = list(resources.values()) if isinstance(resources, dict) else resources
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _type(resource: Mapping[str, Any]) -> str:
    return str(resource.get("type", "")).lower()


def _nested(resource: Mapping[str, Any]) -> bool:
    """True if a nested deployment has an autoscale setting, at any depth."""
    properties = resource.get("properties")
    if _type(resource) != DEPLOYMENT or not isinstance(properties, dict):
        return False
    inner = properties.get("template")
    held = _resources(inner) if isinstance(inner, dict) else []
    return any(_type(each) == KIND or _nested(each) for each in held)


def _chosen(
    candidates: Sequence[Mapping[str, Any]], document: Any, name: str | None
) -> Mapping[str, Any]:
    if not candidates:
        raise BacktestError(_none(document))
    named = [
        each
        for each in candidates
        if str(name).lower() in {str(each.get(key)).lower() for key in ("name", "id")}
    ]
    chosen = candidates if name is None else named
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(str(each.get("name", "without a name")) for each in candidates)
    if name is None:
        raise BacktestError(
            f"{len(candidates)} autoscale settings: {names}. Choose: --setting NAME"
        )
    raise BacktestError(
        f"--setting {name}: {len(named)} settings have this name. Give one of these names, or the "
        f"id of the setting: {names}"
    )


def _none(document: Any) -> str:
    if TERRAFORM in json.dumps(document):
        return f"JSON of Terraform is not read. {DEPLOY}"
    if isinstance(document, dict) and "resources" in document:
        return f"resources: no resource is of type Microsoft.Insights/autoscaleSettings. {WRITE}"
    return f"not an autoscale setting: expected a JSON object with profiles. {WRITE}"


@dataclass(slots=True)
class _Values:
    """Replaces references with the literal values of the template."""

    template: Mapping[str, Any]
    used: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    def of(self, value: Any, place: str, depth: int = 0) -> Any:
        """The literal value. Raises a BacktestError for an expression without one."""
        if isinstance(value, dict):
            if "copy" in value:
                raise BacktestError(f"{place} has a copy loop, a template expression. {DEPLOY}")
            return {key: self.of(each, f"{place}.{key}", depth) for key, each in value.items()}
        if isinstance(value, list):
            return [self.of(each, f"{place}[{n}]", depth) for n, each in enumerate(value)]
        if not isinstance(value, str) or not EXPRESSION.fullmatch(value):
            return value
        reference = REFERENCE.fullmatch(value)
        found = self._referred(*reference.groups()) if reference else None
        if found is None or depth > REFERENCES_MAX:
            raise BacktestError(f"{place} = {value!r} is a template expression. {DEPLOY}")
        literal = self.of(found, place, depth + 1)
        if reference and reference[1].lower() == "parameters":
            self.used[value.strip("[ ]")] = literal
        return literal

    def mentioned(self, value: Any, place: str) -> Any:
        """The literal value; None, noted as unread, for an expression without one."""
        try:
            return self.of(value, place)
        except BacktestError:
            self.unread.append(f"{place}, a template expression")
            return None

    def _referred(self, kind: str, name: str) -> Any:
        values = self.template.get(kind.lower())
        found = values.get(name.lower()) if isinstance(values, dict) else None
        if kind.lower() == "variables":
            return found
        return found.get("defaultvalue") if isinstance(found, dict) else None
