"""MOSS-Image against independent float64 references, on tiny random checkpoints in the real layout."""
