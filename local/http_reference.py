"""``python -m local.http_reference``: generates docs/http.md and docs/openapi.json.

Both files are generated from the operations that the modules of shared/web declare. A test fails
if they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from local.openapi import FUNCTIONS, STATUSES, about, document, example, operations
from shared.web.given import rule, schemas
from shared.web.operation import Operation

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "http.md"
OPENAPI = DOCS / "openapi.json"
TEXT = """# HTTP

All addresses begin with the address of the Function App, such as `https://MY-APP.azurewebsites.net`. Each function has its own key, which you pass as `?code=KEY` or in the header `x-functions-key`. A host key opens all functions. `az functionapp function keys list` shows the keys. {keyless} need no key: they take the token of a link from a notification instead. A token is valid only until the breaker closes.

[openapi.json](openapi.json) describes the same for programs, as OpenAPI 3.1. `python -m local.http_reference` generates both from the operations in `shared/web`.

| address | function | what it returns or does |
|---|---|---|
{addresses}

The functions for breakers and dead letters exist only if `EventHubConnection` is set. The name of the breaker is `metric_ingest`.

## Parameters

| parameter | of | value | default | meaning |
|---|---|---|---|---|
{parameters}

## Bodies

Send a body with the content type `application/json`, of at most 16 KiB. `breaker_close` also takes a form, which the page of the breaker sends. An unknown field is an error. `push_metrics` takes one [sample](messages.md#queue-samples) or a list, and answers how many it took and why it refused others.

| field | of | value | meaning |
|---|---|---|---|
{fields}

## Rate per instance

The field `estimate` of a resource has the rate per instance, in items a minute. It is null before the app has seen any work, and for resources that read no queue:

```json
{{"said": "rate per instance 41.2 a minute, estimated from the backlog ± 18%", "certainty": "estimated from the backlog ± 18%", "source": "backlog", "likely": 41.2, "low": 32.9, "relative_error": 0.18, "sure": true}}
```

| field | meaning |
|---|---|
| `source` | `settings`, `doubted`, `counted` or `backlog`: see [learning](learning.md) |
| `likely`, `low` | the likely value, and the one that the default policy plans with |
| `relative_error` | the standard error as a share of `likely`; 0 if the rate is given in settings |
| `sure` | true if the throughput counts as known |
| `said`, `certainty` | the same in words, with and without the number |

## Override

```json
{example}
```

The body of `override` has these fields:

| field | value | meaning |
|---|---|---|
{override}

An override needs a reason, an author, and at least one of `mode`, `exact`, `floor` and `freeze_scale_in`. The answer is `{{"resource": …, "said": …}}`; the field `said` contains a text that describes the change.

If you open the dashboard with the key of the function `dashboard`, it asks for the key of `override` when you first set an override. With a host key, it does not ask.

## Answers

Answers are JSON, except for the pages. An error is `{{"error": "…"}}`.

| status | meaning |
|---|---|
{statuses}

If a part of the dashboard cannot be read, the page shows the reason in its place. If no part can be read, the answer is 503.
"""  # noqa: E501  a paragraph of Markdown is a line
OVERRIDE = "override"


def page() -> str:
    """The text of docs/http.md."""
    described = operations()
    of_override = next(each for each in described if each.name == OVERRIDE)
    return TEXT.format(
        keyless=" and ".join(f"`{each.name}`" for each in described if not each.keyed),
        addresses=_rows(
            [f"`{each.method} /api/{each.route}`", f"`{_function(each)}`", about(each)]
            for each in described
        ),
        parameters=_parameters(described),
        fields=_rows(
            [name, f"`{each.name}`", *meaning]
            for each in described
            if each is not of_override
            for name, *meaning in _fields(each)
        ),
        example=json.dumps(example(of_override.given["body"])),
        override=_rows(_fields(of_override)),
        statuses=_rows([str(status), text] for status, text in STATUSES.items()),
    )


def _function(operation: Operation) -> str:
    """The function that serves the operation."""
    return next(each.name for each in FUNCTIONS if operation in (each, *each.forms))


def _fields(operation: Operation) -> Iterator[list[str]]:
    """The name, the rule and the meaning of each field of its body."""
    if "body" in operation.given:
        for name, schema in schemas(operation.given["body"]).items():
            yield [f"`{name}`", rule(schema), schema["description"]]


def _parameters(described: Sequence[Operation]) -> str:
    """A row for each parameter, with all functions that take it."""
    takers: dict[tuple[str, ...], list[str]] = {}
    for operation in described:
        for place in ("path", "query"):
            if place in operation.given:
                for name, schema in schemas(operation.given[place]).items():
                    default = f"`{json.dumps(schema['default'])}`" if "default" in schema else ""
                    row = (f"`{name}`", rule(schema), default, schema["description"])
                    takers.setdefault(row, []).append(f"`{_function(operation)}`")
    return _rows(
        [name, ", ".join(dict.fromkeys(functions)), *others]
        for (name, *others), functions in takers.items()
    )


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def openapi() -> str:
    """The text of docs/openapi.json."""
    return f"{json.dumps(document(), indent=2, ensure_ascii=False)}\n"


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")
    OPENAPI.write_text(openapi(), encoding="utf-8")


if __name__ == "__main__":
    main()
