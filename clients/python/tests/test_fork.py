"""Processes that fork while they hold a lease."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from nodes import Cluster

PROGRAM = Path(__file__).resolve().parent / "forked.py"


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
@pytest.mark.parametrize("kind", ["os.fork", "multiprocessing"])
def test_child_gets_an_error_and_the_parent_works_on(cluster: Cluster, kind: str) -> None:
    command = [sys.executable, "-W", "ignore", str(PROGRAM), kind, ",".join(cluster.urls), f"forked/{kind}"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    told: dict[str, Any] = {line["who"]: line["told"] for line in map(json.loads, ran.stdout.splitlines())}
    assert len(told["child"]) >= 9
    for call, outcome in told["child"].items():
        kinds = ("client", "manager") if call in ("get", "watch") else ("manager",)
        expected = [
            f"RuntimeError: this {kind} belongs to process {told['parent']}: create one in the child" for kind in kinds
        ]
        assert outcome in expected, call
    assert told["own"] is True
    assert told["exit"] == 7, "the child leaves each `with` without another error"
    assert (told["check"], told["renewed"]) == (True, True)
    assert ran.stdout.count('"who": "child"') == 1
