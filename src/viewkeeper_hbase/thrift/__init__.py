"""A client of HBase's Thrift2 gateway: connections, requests encoded from Arrow, replies decoded into Arrow."""
