"""Tables, views, indexes and clustered views of a database, as immutable values."""
