"""The server: tables and views over HTTP, their changes as they happen, metrics, and a page that shows it all.

request ─▶ guard ─▶ read · write · ask · look · changes ─▶ engine
                                          ▲
                 hub: one thread reads each commit once, for all subscribers of this process

process.py    the process: sockets, limits of a connection, signals
app.py        a request's way in: guard, fast path, routes, problems
tokens.py     who may do what
formats.py    rows as JSON, JSON lines, CSV or Arrow; `exact.py` is JSON without lost digits, `intake.py` and
              `packed.py` the way in
reading.py    rows by key and pages of one state; `pins.py` keeps that state, `paths.py` writes keys in URLs
writing.py    put, update, delete
asking.py     one SQL statement
looking.py    tables, views, plans, status
changes.py    subscriptions; `hub.py` feeds them, `events.py` writes them down
pulse.py      the state of everything, once a second, for pages that look at it
metrics.py    Prometheus
openapi.py    all of it, described
"""
