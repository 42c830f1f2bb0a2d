"""1. Stores: ordered byte keys, get, scan, atomic single-row writes, and the capabilities that each store adds."""
