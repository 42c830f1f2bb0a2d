"""Views with a cut of their own: scheduled views, and per-call views."""
