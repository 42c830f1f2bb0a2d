"""Directories that are here, and those behind a URL, with copies here."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyarrow import fs

from viewkeeper.errors import BadValue, StoreError
from viewkeeper.resources import file_cache, unlisted_files
from viewkeeper.resources.directory import StateDirectory
from viewkeeper.resources.unlisted_files import GarbageCollector


@pytest.fixture(params=["path", "file://", "mock://", "options"])
def directory(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateDirectory:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    place = {
        "path": str(tmp_path / "where?"),
        "file://": (tmp_path / "there").as_uri(),
        "mock://": f"mock://{tmp_path}",
        "options": f"{(tmp_path / 'there').as_uri()}/?x=1&y=2",
    }
    return StateDirectory(place[request.param])


def write(directory: StateDirectory, name: str, text: str) -> None:
    (directory / name).write_text(text)
    directory.upload(name)


def test_what_was_saved_is_there_for_who_has_no_copy(
    directory: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not directory.exists()
    directory.create()
    assert directory.exists()
    write(directory, "b1.vkr", "one")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    elsewhere = StateDirectory(str(directory))
    assert elsewhere.list_names("b*") == ["b1.vkr"]
    assert elsewhere.fetch("b1.vkr").read_text() == "one"
    assert not elsewhere.fetch("b2.vkr").exists()
    elsewhere.remove("b1.vkr")
    elsewhere.remove("b1.vkr")
    assert elsewhere.list_names("*") == []


def test_a_directory_below_is_one_of_its_own(directory: StateDirectory) -> None:
    below = directory.subdirectory("redo")
    below.create()
    write(below, "r", "x")
    assert directory.list_names("r") == []
    assert StateDirectory(str(below)).fetch("r").read_text() == "x"


def test_old_files_are_told_from_new_ones(directory: StateDirectory) -> None:
    directory.create()
    write(directory, "new", "x")
    assert directory.list_names("*", min_age=60) == []
    if not str(directory).startswith("mock"):
        path = Path(str(directory).removeprefix("file://").removesuffix("?x=1&y=2")) / "new"
        os.utime(path, (time.time() - 100,) * 2)
        assert directory.list_names("*", min_age=60) == ["new"]


def test_a_copy_that_is_damaged_is_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = StateDirectory((tmp_path / "there").as_uri())
    directory.create()
    write(directory, "a", "good")
    (directory / "a").write_text("bad!")
    assert directory.fetch("a").read_text() == "bad!"
    assert directory.fetch("a", refresh=True).read_text() == "good"


def test_old_copies_go_and_come_again_when_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = StateDirectory((tmp_path / "there").as_uri())
    directory.create()
    write(directory, "a", "x")
    os.utime(directory / "a", (time.time() - 30 * 86_400,) * 2)
    directory.create()
    assert not (directory / "a").exists()
    assert directory.fetch("a").read_text() == "x"


def test_a_range_is_read_without_the_rest(
    directory: StateDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory.create()
    write(directory, "a", "0123456789")
    path, start = directory.fetch_range("a", 3, 4)
    assert path.read_text()[start : start + 4] == "3456"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    elsewhere = StateDirectory(str(directory))
    for _ in range(2):
        path, start = elsewhere.fetch_range("a", 3, 4)
        assert path.read_text()[start : start + 4] == "3456"
    if not directory.is_local:
        assert path.read_text() == "3456", "and nothing else was copied"
        path.write_text("????")
        path, _ = elsewhere.fetch_range("a", 3, 4, refresh=True)
        assert path.read_text() == "3456"
        elsewhere.remove("a")
        assert not path.exists()


def test_copies_take_no_more_than_they_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_cache, "_MIN_AGE_SECONDS", 0.0)
    monkeypatch.setattr("viewkeeper.resources.object_store.parse_size", lambda text, _: int(text))
    directory = StateDirectory(f"{(tmp_path / 'there').as_uri()}?cache_bytes=350")
    directory.create()
    for name in "abcde":
        write(directory, name, name * 100)
        os.utime(directory / name, (time.time() - 100 + ord(name),) * 2)
        (directory / name).unlink()
    for name in "abcab":  # b was opened after c
        directory.fetch(name)
        time.sleep(0.01)
    directory.fetch("d")
    assert sorted(p.name for p in Path(directory).iterdir()) == ["a", "b", "d"]
    assert directory.fetch("c").read_text() == "c" * 100


def test_copies_are_found_again_whatever_their_limit(tmp_path: Path) -> None:
    place = (tmp_path / "there").as_uri()
    assert Path(StateDirectory(place)) == Path(StateDirectory(f"{place}?cache_bytes=1GB"))
    assert str(StateDirectory(f"{place}?cache_bytes=1GB").subdirectory("redo")) == f"{place}/redo?cache_bytes=1GB"
    with pytest.raises(BadValue, match="cache_bytes is 'much'"):
        StateDirectory(f"{place}?cache_bytes=much")


@pytest.mark.parametrize("is_far", [False, True])
def test_garbage_goes_and_what_could_not_be_removed_goes_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_far: bool
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(StateDirectory, "is_object_store", is_far)
    directory = StateDirectory((tmp_path / "there").as_uri())
    directory.create()
    for name in "abcd":
        write(directory, name, name)
    swept = GarbageCollector(directory, "*")
    refused = {"b"}
    remove = directory.remove

    def refusing(name: str) -> None:
        if name in refused:
            raise StoreError("no")
        remove(name)

    monkeypatch.setattr(directory, "remove", refusing)

    def sweep() -> str | None:
        try:
            swept.collect(lambda name: name in "abc")
        except StoreError as error:
            return error.message
        finally:
            swept.wait()
        return None

    # Of what failed in the background it is the next ones that tell, as long as it fails.
    assert [sweep(), sweep(), sweep()] == [None, "no", "no"]
    assert directory.list_names("*") == ["b", "d"]
    refused.clear()
    assert sweep() is None
    assert directory.list_names("*") == ["d"]
    write(directory, "c", "of another machine")
    monkeypatch.setattr(unlisted_files, "_LISTING_INTERVAL", 0.0)
    sweep()
    assert directory.list_names("*") == ["d"]


def test_what_cannot_be_opened_is_named() -> None:
    with pytest.raises(BadValue, match=r"gopher://x/y cannot be opened"):
        StateDirectory("gopher://x/y")


def test_what_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="could not be made"):
        StateDirectory((tmp_path / "file" / "below").as_uri()).create()


def test_options_of_a_url_stay_behind_its_path() -> None:
    state = StateDirectory("s3://bucket/state/?region=us-east-1&endpoint_override=localhost:9&scheme=http")
    assert (
        str(state.subdirectory("redo"))
        == "s3://bucket/state/redo?region=us-east-1&endpoint_override=localhost:9&scheme=http"
    )


class Grudging(fs.LocalFileSystem):  # type: ignore[misc]
    """Says of a file that is not there what HDFS does."""

    def delete_file(self, path: str) -> None:
        try:
            super().delete_file(path)
        except FileNotFoundError:
            raise OSError(f"[Errno 5] cannot delete {path}") from None


def test_a_file_system_that_cannot_say_that_nothing_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    directory = StateDirectory((tmp_path / "there").as_uri())
    assert directory._remote is not None
    directory._remote.filesystem = Grudging()
    directory.create()
    write(directory, "a", "x")
    directory.remove("a")
    directory.remove("a")
    assert directory.list_names("*") == []
    (tmp_path / "there" / "d").mkdir()
    with pytest.raises(StoreError, match="rid of d"):
        directory.remove("d")
