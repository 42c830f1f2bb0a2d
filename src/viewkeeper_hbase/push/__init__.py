"""Changes that HBase pushes: from its write-ahead log, through a replication endpoint, to a spool that batches read.

    region server ── endpoint (java/) ──▶ receiver ──▶ spool, durable ──▶ acknowledged: HBase may forget
                                             ▲                │
                              how far is it? │                ▼ keys of rows that were touched
                                           reach ◀────────── feed: the rows, as HBase has them at the cut

What is pushed are row keys and times, not values. The rows of these keys are read at the cut, so it is HBase itself
that decides which of several cells counts, whatever came twice, late or in any order; a row that equals the known one
falls out against the table's image.

    wire        the connection: secret, frames, codes          spool      what came, until a batch has it
    touched     the rows of a frame                            reach      whether all has come that was acknowledged
    receiver    takes frames, spools, acknowledges             pushed     what the feed asks of all this
    settings    what a database has agreed with HBase          admin      the replication peer, by the jar's own main
    jar         where the endpoint's jar is, or how it is built
"""
