"""TPC-H in a real HBase: views equal to Spark's own answer after every batch."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("thriftpy2")

from viewkeeper.cli import main
from viewkeeper_hbase.devserver.server import Server

ALL = ",".join(str(number) for number in range(1, 23))

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("spark")]


@pytest.mark.parametrize("lane", ["driver", "spark"])
@pytest.mark.parametrize(
    ("views", "batches", "scale"),
    [("1,3", "1", "0.002"), pytest.param(ALL, "5", "0.01", marks=pytest.mark.deep)],
    ids=["two views", "all views"],
)
def test_views_equal_spark_after_every_batch(
    hbase: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lane: str,
    views: str,
    batches: str,
    scale: str,
) -> None:
    monkeypatch.setenv("VIEWKEEPER_HBASE_DATA", str(hbase.data))
    sizes = ("--scale", scale, "--batches", batches, "--seed", "7", "--data", str(tmp_path))
    with pytest.raises(SystemExit) as done:
        main(["verify", "tpch", "--store", "hbase", "--views", views, "--lane", lane, *sizes])
    assert done.value.code == 0, capsys.readouterr().err
    assert f"equal to Spark's answer after each of {batches} batches" in capsys.readouterr().out
