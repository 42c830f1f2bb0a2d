"""The logical plan: frozen nodes read from Catalyst's optimised plan, stored with the view."""
