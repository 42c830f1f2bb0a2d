"""Clients of `vk serve`: the read, write and subscribe part of a database's surface, over HTTP, Arrow inside.

    wire.py            what is sent and what comes back, without a connection
    frames.py          an Arrow stream of changes, cut into deltas as its bytes come
    transport.py       kept-alive connections to one server
    described.py       tables and views by name
    connection.py      `Client`: calls that wait
    asynchronous.py    `AsyncClient`: the same for asyncio

A program moves from embedded to served by changing one line: `viewkeeper.open(…)` becomes `viewkeeper.connect(…)`.
"""
