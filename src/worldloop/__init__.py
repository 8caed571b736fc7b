"""worldloop: the open-source server for generative worlds."""

__version__ = "0.1.0"
