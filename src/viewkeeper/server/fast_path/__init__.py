"""Reads by key and puts, answered below the application for speed."""
