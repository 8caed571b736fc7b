"""MOSS-Image: pictures from text, in the layout of diffusers. Transformer and schedule are ours; text encoder and
picture decoder come from transformers and diffusers, which load when a checkpoint does."""
