"""Numerical tests of the networks, their memory and their sampler, against float64 references."""
