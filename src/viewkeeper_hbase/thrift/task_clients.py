"""The HBase client of a process that runs tasks for a maintainer."""

from __future__ import annotations

import os
from functools import lru_cache

from viewkeeper_hbase.thrift.client import HBaseClient
from viewkeeper_hbase.url import parse_url


@lru_cache(maxsize=4)
def worker_client(url: str) -> HBaseClient:
    """Return a client, cached for later tasks of the process. Processes are spread over the gateways that the URL
    names."""
    address = parse_url(url)
    return HBaseClient(address.choose_gateway(os.getpid()), retry=address.retry)
