"""Two views, one of which fails in every possible way, in every lane: the other stays right and fresh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration import failing_operators


@pytest.mark.deep
def test_the_other_view_stays_right_and_fresh(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(failing_operators.PATCH)
    paths = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    ran = subprocess.run(
        [sys.executable, failing_operators.__file__, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4_000:]
    found = dict(json.loads(line) for line in ran.stdout.splitlines() if line.startswith("["))
    cases = len(failing_operators.LANES) * (2 * len(failing_operators.ERRORS) + len(failing_operators.DATA))
    assert len(found) == cases
    expected = [["bad"], True, [], True, True, True]
    assert {case: told for case, told in found.items() if told != expected} == {}
