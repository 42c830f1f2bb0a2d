"""A database that an earlier version left on disk, and what is known of it without that version.

`shop.py` says which statements and rows it was made of; `version_0_1.tar.xz` is what version 0.1 wrote for them.
"""
