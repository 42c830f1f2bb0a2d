"""Which lane `auto` takes: by what was measured here, by the cluster's cores, and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from viewkeeper.errors import UnknownName
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.runtime.cost_model import LaneCostModel, lanes_text
from viewkeeper.runtime.spark.sessions import Cluster


def lanes(place: Path, cluster: Cluster | None, threads: int = 2) -> LaneCostModel:
    return LaneCostModel(StateDirectory(place), lambda: cluster, threads)


def test_without_a_session_nothing_is_started(tmp_path: Path) -> None:
    choice = lanes(tmp_path, None).choose("auto", 10**9)
    assert (choice.lane, choice.reason) == ("driver", "no Spark session was given or is running")


def test_a_lane_that_is_asked_for_is_taken_and_a_wrong_one_refused(tmp_path: Path) -> None:
    assert lanes(tmp_path, None).choose("spark", 0).lane == "spark"
    assert lanes(tmp_path, Cluster(100, False)).choose("driver", 10**9).lane == "driver"
    with pytest.raises(UnknownName, match="There is no lane 'sparks'"):
        lanes(tmp_path, None).choose("sparks", 0)


def test_many_cores_take_bulk_and_small_batches_stay(tmp_path: Path) -> None:
    many = lanes(tmp_path, Cluster(100, False))
    assert many.choose("auto", 1_000).lane == "driver"
    assert many.choose("auto", 5_000_000).lane == "spark"
    assert many.choose("auto", 5_000_000, "load").lane == "spark"
    assert "5,000,000 rows: " in many.choose("auto", 5_000_000).reason
    assert "on Spark with 100 cores" in many.choose("auto", 5_000_000).reason


def test_on_the_drivers_own_cores_there_is_nothing_to_gain(tmp_path: Path) -> None:
    assert lanes(tmp_path, Cluster(2, True)).choose("auto", 10**9).lane == "driver"


def test_what_is_measured_decides_and_outlives_the_maintainer(tmp_path: Path) -> None:
    cluster = Cluster(8, False)
    before = lanes(tmp_path, cluster, threads=8)
    assert before.choose("auto", 200_000).lane == "driver"
    for _ in range(3):  # the first batch on Spark is not like the others, and says nothing
        before.observe("spark", 1_000_000, 3.0)
        before.observe("driver", 1_000_000, 60.0)
    after = lanes(tmp_path, cluster, threads=8)
    assert after.choose("auto", 200_000).lane == "spark"
    assert after.choose("auto", 200_000, "load").lane == "driver", "of loads nothing is known"
    told = lanes_text(StateDirectory(tmp_path))
    assert told is not None
    assert "driver 60.0 µs a row; spark 20.8 µs a row and core" in told


def test_what_is_measured_again_and_again_is_written_once(tmp_path: Path) -> None:
    path, known = tmp_path / "lanes.json", lanes(tmp_path, None)
    known.observe("driver", 100_000, 1.02)
    known.observe("driver", 100, 0.02)
    known.observe("driver", 100_000, 1.02)  # with it the floor is written, which the small batch has told
    written = path.stat()
    for seconds in (1.0, 1.1, 1.05, 0.98):
        known.observe("driver", 100_000, seconds)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)
    again = lanes(tmp_path, None)
    again.observe("driver", 100_000, 1.0)
    assert path.stat().st_ino == written.st_ino, "nor by the next one"
    for _ in range(5):  # a machine that is slower now
        again.observe("driver", 100_000, 2.0)
    told = lanes_text(StateDirectory(tmp_path))
    assert told is not None
    micros = float(told.partition("driver 20 ms a batch and ")[2].partition(" ")[0])
    assert 16.0 < micros < 20.0
    path.unlink()
    again.observe("driver", 100_000, 20.0)
    assert path.exists()


def test_a_damaged_note_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / "lanes.json").write_text('{"batch": {"driver": ["x"')
    assert lanes(tmp_path, Cluster(100, False)).choose("auto", 5_000_000).lane == "spark"
    assert lanes_text(StateDirectory(tmp_path)) is None


@pytest.mark.parametrize("kind", ["batch", "load"])
def test_slow_small_work_in_the_driver_sends_no_small_work_to_spark(tmp_path: Path, kind: str) -> None:
    """What was slow there, an opened database or a busy machine, is as slow before and after a job on Spark."""
    busy = lanes(tmp_path, Cluster(100, False))
    busy.observe("driver", 20, 7.0, kind)
    assert busy.choose("auto", 20, kind).lane == "driver"
    for _ in range(3):
        busy.observe("spark", 20, 0.9, kind)
    assert busy.choose("auto", 20, kind).lane == "driver"
    assert busy.choose("auto", 5_000_000, kind).lane == "spark"
