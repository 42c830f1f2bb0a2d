"""HTTP requests and replies: limits, formats, lossless JSON."""
