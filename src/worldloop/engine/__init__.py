"""The engine: what a loop is, and who runs next. Knows plans; no models, no torch."""
