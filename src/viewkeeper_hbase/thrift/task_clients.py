"""The client of a process that does pieces of work for a maintainer elsewhere."""

from __future__ import annotations

import os
from functools import lru_cache

from viewkeeper_hbase.thrift.client import Client
from viewkeeper_hbase.url import parse


@lru_cache(maxsize=4)
def client_of(url: str) -> Client:
    """Kept while the process is used again. Processes spread over the gateways that the URL names."""
    place = parse(url)
    return Client(place.gateway_of(os.getpid()), retry=place.retry)
