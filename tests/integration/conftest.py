"""One HBase for all tests that need it: that of VK_HBASE (a data directory of `vk hbase start`), else one of its own.

Where HBase cannot be had the tests are skipped with the reason, but in CI that is a failure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A running `Server`. One that ran before the tests still runs after them."""
    pytest.importorskip("thriftpy2")
    from viewkeeper.errors import MissingDependency
    from viewkeeper.store.hbase.server import Server

    server = Server(os.environ.get("VK_HBASE") or tmp_path_factory.mktemp("hbase"))
    ran = server.status().hbase
    try:
        server.start(timeout=240)
    except MissingDependency as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield server
    if not ran:
        server.stop()
