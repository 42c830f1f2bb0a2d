"""What a user writes to name an HBase."""

from __future__ import annotations

import pytest

pytest.importorskip("thriftpy2")

from viewkeeper.errors import BadValue
from viewkeeper_hbase.thrift.connection import Gateway, Tls
from viewkeeper_hbase.url import parse_url


def test_host_alone_is_enough() -> None:
    place = parse_url("hbase://hb.example")
    assert (place.gateway, place.namespace) == (Gateway("hb.example", 9090), "default")


def test_everything_can_be_said_in_the_url_and_open_has_the_last_word() -> None:
    place = parse_url(
        "hbase://h:99/shop?transport=buffered&protocol=compact&read_timeout=7.5&retries=0&ca=/a.pem&verify=no"
    )
    assert place.namespace == "shop"
    assert place.gateway == Gateway(
        "h", 99, transport="buffered", protocol="compact", read_timeout=7.5, tls=Tls(ca="/a.pem", verify=False)
    )
    assert place.retry.max_retries == 0
    assert parse_url("hbase://h?read_timeout=7", {"read_timeout": 9, "tls": True}).gateway == Gateway(
        "h", read_timeout=9.0, tls=Tls()
    )


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("hbase:///shop", "not the address"),
        ("hbase://h/a/b", "not the address"),
        ("http://h/a", "not the address"),
        ("hbase://h:port/a", "port"),
        ("hbase://h:70000/a", "port"),
        ("hbase://h/a?colour=red", "no option colour"),
        ("hbase://h/a?read_timeout=soon", "read_timeout=soon"),
        ("hbase://h/a?connect_timeout=0", "connect_timeout=0"),
        ("hbase://h/a?tls=perhaps", "tls=perhaps"),
        ("hbase://h/a?protocol=json", "json"),
    ],
)
def test_what_cannot_be_is_refused_and_named(url: str, said: str) -> None:
    with pytest.raises(BadValue, match=said):
        parse_url(url)
