"""Stores by URL: the scheme chooses, and what is missing is named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import viewkeeper
from viewkeeper.errors import BadValue, MissingDependency
from viewkeeper.store import registry
from viewkeeper.store.lmdb import LmdbStore
from viewkeeper.store.registry import open_store, schemes


def test_the_scheme_chooses_the_store(tmp_path: Path) -> None:
    store = open_store(f"lmdb:{tmp_path / 'db'}", durability="none")
    assert isinstance(store, LmdbStore)
    store.close()
    reader = open_store(f"LMDB:{tmp_path / 'db'}", "r")
    assert reader.uuid == store.uuid
    reader.close()


def test_a_relative_path_becomes_a_whole_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker with another directory opens the same database by it."""
    monkeypatch.chdir(tmp_path)
    store = open_store("lmdb:./shop")
    assert store.url == f"lmdb:{tmp_path / 'shop'}"
    store.close()


@pytest.mark.parametrize("url", ["shop", "nosql:./shop", "lmdb:", "lmdb:/"])
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadValue, match=r"lmdb:|lmdb"):
        open_store(url)


def test_an_unknown_option_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadValue, match="colour"):
        open_store(f"lmdb:{tmp_path / 'db'}", colour="red")
    assert not (tmp_path / "db").exists()


@pytest.mark.parametrize(("extra", "url"), [("hbase", "hbase://localhost:9090/shop"), ("rocksdb", "rocksdb:./shop")])
def test_a_store_whose_package_is_missing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, extra: str, url: str
) -> None:
    def missing(name: str) -> Any:
        raise ModuleNotFoundError("No module named 'something'")

    monkeypatch.setattr(registry, "import_module", missing)
    monkeypatch.setitem(sys.modules, "viewkeeper_hbase.store", None)
    with pytest.raises(MissingDependency, match=rf"viewkeeper\[{extra}\]"):
        open_store(url)


def test_another_package_adds_a_store(monkeypatch: pytest.MonkeyPatch) -> None:
    class Point:
        name = "cloud"

        def load(self) -> Any:
            return lambda url, mode, **options: (url, mode, options)

    def points(group: str, name: str | None = None) -> list[Point]:
        assert group == "viewkeeper.stores"
        return [Point()] if name in (None, "cloud") else []

    monkeypatch.setattr(registry, "entry_points", points)
    assert open_store("cloud:x", "r", zone=1) == ("cloud:x", "r", {"zone": 1})
    assert schemes() == ["cloud", "lmdb", "rocksdb"]


def test_an_installed_package_brings_its_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves it: a module, and a dist-info that names its entry point."""
    (tmp_path / "cloudstore.py").write_text(
        "from viewkeeper.store.lmdb import LmdbStore\n"
        "class CloudStore(LmdbStore):\n"
        "    pass\n"
        "def open_url(url, mode, *, zone='here'):\n"
        f"    store = CloudStore({str(tmp_path)!r} + '/' + zone + url.partition(':')[2], mode)\n"
        "    return store\n"
    )
    info = tmp_path / "cloudstore-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: cloudstore\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[viewkeeper.stores]\ncloud = cloudstore:open_url\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "cloud" in schemes()
    with viewkeeper.open("cloud:shop", zone="north") as db:
        assert type(db._store).__name__ == "CloudStore"
        db.sql("CREATE TABLE items (id BIGINT PRIMARY KEY, name STRING)")
        db.put("items", {"id": 1, "name": "ball"})
        assert db.get("items", 1) == {"id": 1, "name": "ball"}
    assert (tmp_path / "northshop").is_dir()
    with pytest.raises(BadValue, match="colour"):
        open_store("cloud:shop", colour="red")
