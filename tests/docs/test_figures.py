"""The figures in the README are those of the record that it links to."""

from __future__ import annotations

import re

from tests.docs.test_docs import README, ROOT

RECORD = (ROOT / "docs" / "adr" / "0005-default-policy.md").read_text(encoding="utf-8")
ROWS = {
    "default policy, finished messages counted": "counted",
    "default policy, rate given, nothing counted": "rate given",
    "default policy, nothing but the backlog": "backlog alone",
    "model of KEDA, rate given": "KEDA, rate given",
    "model of Azure Monitor autoscale, rate given": "Azure Monitor's model, rate given",
}


def test_what_a_reader_gains_is_what_was_measured_on_held_out_traces() -> None:
    table = RECORD.split("**Held out, today.**")[1]
    for said, measured in ROWS.items():
        row = re.search(rf"^\| {re.escape(measured)} \| (\S+) %.*? \| \S+ \| (\S+) %", table, re.M)
        assert row, measured
        (cheap, dear) = re.findall(rf"^\| {said} \| (\S+) % \| (\S+) % \|$", README, re.MULTILINE)[
            0
        ]
        assert cheap == row[1]
        assert float(dear) == round(float(row[2]))
    assert "20 traces" in README
    assert "20 traces" in table[:200]
