"""The client of a process that does pieces of work for a maintainer elsewhere."""

from __future__ import annotations

import os
from functools import lru_cache

from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.url import parse_url


@lru_cache(maxsize=4)
def worker_client(url: str) -> HBaseClient:
    """Kept while the process is used again. Processes spread over the gateways that the URL names."""
    place = parse_url(url)
    return HBaseClient(place.choose_gateway(os.getpid()), retry=place.retry)
