"""Benchmarks of the suite and its peers: ``python -m benchmarks``."""
