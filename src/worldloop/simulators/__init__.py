"""Worlds made by hand, whose walks the shipped models learn from. No torch."""
