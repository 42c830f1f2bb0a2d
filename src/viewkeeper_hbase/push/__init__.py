"""Push capture: HBase sends changed row keys from its write-ahead log to a spool, and batches read the spool.

    region server ── endpoint (java/) ──▶ receiver ──▶ spool, durable ──▶ acknowledged: HBase may drop the WAL
                                             ▲                │
                           completeness: all │                ▼ keys of written rows
                           WALs shipped?  ───┘           inflow, arrivals ──▶ capture.feed reads the rows at the cut

Row keys and times are pushed, not values. Capture reads the rows of these keys at the cut, so HBase itself
decides which cell counts, and duplicate, late or unordered pushes do no harm: a row that equals the one in the
table image cancels out.

    protocol       the connection: secret, frames, codes; the byte layout of a frame's rows
    receiver       accepts frames, appends them to the spool, then acknowledges them
    spool          pushed changes as durable files, until a batch contains them
    completeness   whether everything that HBase had acknowledged has been pushed
    inflow         one database's receivers and spool; the rows written since a mark
    arrivals       what capture asks for each table: complete, pending, rows to read
    attachment     begins and ends push capture with the maintainer's lease
    settings       what the database has agreed with HBase: the peer, the receivers, the secret
    admin          the replication peer, managed by the jar's own `main`
    endpoint_jar   the jar of the endpoint, packaged or built from its sources
"""
