"""Loops: what each family of models does, one unit of work at a time, on the engine's contract."""
