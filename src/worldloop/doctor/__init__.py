"""What this machine can do, and whether `worldloop play` would work here with these settings."""
