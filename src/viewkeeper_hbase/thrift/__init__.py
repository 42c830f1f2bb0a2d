"""HBase's Thrift2 gateway: connections, requests as bytes, replies decoded into Arrow."""
