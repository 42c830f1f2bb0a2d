"""The server's endpoints."""
