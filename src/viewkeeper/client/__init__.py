"""Clients of `vk serve`: reads, writes and subscriptions of a database over HTTP, with Arrow data.

    protocol.py         requests and answers, without a connection
    change_stream.py    an Arrow stream of changes, decoded into deltas as its bytes arrive
    http.py             kept-alive connections to one server
    client.py           `Client`: blocking calls
    async_client.py     `AsyncClient`: the same for asyncio

A program moves from embedded to served by changing one line: `viewkeeper.open(…)` becomes `viewkeeper.connect(…)`.
"""
