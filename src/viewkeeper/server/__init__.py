"""The server: tables and views over HTTP, their changes as they are committed, metrics, and a status page.

request ─▶ app ─▶ endpoints ─▶ engine
                      ▲
      hub: one thread reads each commit once, for all subscribers of this process

process.py            the process: sockets, connection limits, signals
app.py                dispatch of a request: host check, token, routes, problems
auth.py               tokens, roles, allowed hosts
routes.py             every endpoint, and the OpenAPI document
context.py            what all requests share: database, limits, hub, thread pool
errors.py             problem documents
hub.py                the reader of commits for all subscriptions
pinned_snapshots.py   snapshots that page cursors refer to
status_feed.py        the status once a second, for pages that watch it
metrics.py            Prometheus
http/                 requests, formats, JSON values, events, keys in URLs, limits of Arrow bodies
endpoints/            catalog, rows, selection, write, sql, changes
fast_path/            point reads and puts below the application
page/                 the status page
"""
