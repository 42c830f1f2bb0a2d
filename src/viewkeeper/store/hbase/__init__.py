"""HBase: a Thrift2 client in pure Python, and a server of one's own for trials."""
