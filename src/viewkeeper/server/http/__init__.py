"""Requests and replies: limits, formats, lossless JSON."""
