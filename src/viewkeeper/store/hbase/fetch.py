"""HBase's jars: 149 of them, 108 MB."""

from __future__ import annotations

from viewkeeper.store.jars import Jars

HBASE = Jars(
    program="HBase",
    version="2.6.1",
    package=__package__,
    variable="VIEWKEEPER_HBASE_HOME",
    main="hbase-thrift-*.jar",
    megabytes=150,
)
