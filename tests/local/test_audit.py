"""Whether anything is known against our packages: found, not found, and not asked are three."""

from __future__ import annotations

import pytest

from local import audit
from local.audit import Report, Unreachable

CLEAN = {"dependencies": [{"name": "rich", "version": "1.0", "vulns": []}]}
UNKNOWN = {"dependencies": [{"name": "rich", "skip_reason": "not found on PyPI"}]}
VULNERABLE = {
    "dependencies": [
        {"name": "aiohttp", "version": "3.0", "vulns": [{"id": "CVE-1", "fix_versions": ["3.1"]}]},
        {"name": "croniter", "version": "1.0", "vulns": [{"id": "CVE-2", "fix_versions": []}]},
        {"name": "rich", "skip_reason": "not found on PyPI"},
    ]
}


def answering(**answers: Report | Unreachable) -> audit.Ask:
    return lambda service: answers[service]


def test_what_is_known_against_a_package_fails_and_is_named_with_what_mends_it() -> None:
    lines, code = audit.audit(answering(pypi=audit.read("pypi", VULNERABLE)))
    assert code == 1
    assert lines == [
        "aiohttp 3.0: CVE-1, mended in 3.1",
        "croniter 1.0: CVE-2, mended in no version yet",
        "audited 2 package(s) (pypi): 2 known vulnerabilities",
        "not audited: rich",
    ]


def test_a_service_that_knows_nothing_is_followed_by_the_other() -> None:
    other = audit.read("osv", CLEAN)
    for first in (audit.read("pypi", UNKNOWN), Unreachable("pypi", "no answer within 60 s")):
        assert audit.audit(answering(pypi=first, osv=other)) == (
            ["audited 1 package(s) (osv): none known"],
            0,
        )


@pytest.mark.parametrize(("arguments", "code"), [([], 0), (["--strict"], 1)])
def test_what_nobody_knows_is_never_said_to_be_sound(
    arguments: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nobody = answering(
        pypi=audit.read("pypi", UNKNOWN), osv=Unreachable("osv", "Name or service not known")
    )
    monkeypatch.setattr(audit, "ask", nobody)
    assert audit.main(arguments) == code
    assert capsys.readouterr().out == (
        "not audited: no data on vulnerabilities can be had (pypi: not found on PyPI; osv: Name or "
        "service not known)\n"
    )
