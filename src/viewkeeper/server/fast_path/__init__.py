"""Fast paths: reads by key and puts, answered below the application."""
