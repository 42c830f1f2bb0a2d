"""What the server's endpoints do."""
