"""Keys and rows as bytes. Key bytes sort as the key values do."""
