"""Networks, their memory, their noise and their weights. The only layer below `loops` that knows torch."""
