"""Benches: each is a module to run, `python -m bench.NAME`, that prints a table and writes its numbers as JSON."""
