"""1. Stores: ordered byte keys, get, scan, atomic single-row writes, and what else each can honestly do."""
