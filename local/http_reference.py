"""``python -m local.http_reference``: generates docs/http.md and docs/openapi.json.

Both files are generated from the routes in function_app.py and the endpoints that the modules of
shared/web declare. A test fails if they differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from local.openapi import Operation, document, operations
from shared.web.endpoint import STATUSES
from shared.web.fields import Field

DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "http.md"
OPENAPI = DOCS / "openapi.json"
TEXT = """# HTTP

All addresses begin with the address of the Function App, such as `https://MY-APP.azurewebsites.net`. Each function has its own key, which you pass as `?code=KEY` or in the header `x-functions-key`. A host key opens all functions. `az functionapp function keys list` shows the keys. {keyless} need no key: they take the token of a link from a notification instead. A token is valid only until the breaker closes.

[openapi.json](openapi.json) describes the same for programs, as OpenAPI 3.1. `python -m local.http_reference` generates both from the routes and their declarations in `shared/web`.

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

## Throughput

The field `estimate` of a resource has the throughput of one instance, in items a minute. It is null before the app has seen any work, and for resources that read no queue:

```json
{{"said": "throughput 41.2 a minute, estimated from the backlog ± 18%", "certainty": "estimated from the backlog ± 18%", "source": "backlog", "likely": 41.2, "low": 32.9, "relative_error": 0.18, "sure": true}}
```

| field | meaning |
|---|---|
| `source` | `settings`, `counted` or `backlog`: see [learning](rules.md#learning) |
| `likely`, `low` | the likely value, and the one that the default rule plans with |
| `relative_error` | the standard error as a share of `likely`; 0 if the throughput is given in settings |
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
    others = [each for each in described if each is not of_override]
    return TEXT.format(
        keyless=" and ".join(f"`{each.name}`" for each in described if not each.route.keyed),
        addresses=_rows(
            [_address(each), f"`{each.route.function}`", each.about] for each in described
        ),
        parameters=_parameters(described),
        fields=_rows(
            [f"`{field.name}`", f"`{each.name}`", field.rule, field.meaning]
            for each in others
            for field in each.endpoint.in_body
        ),
        example=json.dumps(of_override.endpoint.body_example),
        override=_rows(
            [f"`{field.name}`", field.rule, field.meaning] for field in of_override.endpoint.in_body
        ),
        statuses=_rows([str(status), text] for status, text in STATUSES.items()),
    )


def _address(operation: Operation) -> str:
    return f"`{operation.route.method} /api{operation.path}`"


def _parameters(described: Sequence[Operation]) -> str:
    """A row for each parameter, with all operations that take it."""
    takers: dict[Field, list[str]] = {}
    for operation in described:
        for field in (*operation.endpoint.in_path, *operation.endpoint.in_query):
            takers.setdefault(field, []).append(f"`{operation.route.function}`")
    return _rows(
        [
            f"`{field.name}`",
            ", ".join(dict.fromkeys(functions)),
            field.rule,
            "" if field.default is None else f"`{json.dumps(field.default)}`",
            field.meaning,
        ]
        for field, functions in takers.items()
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
