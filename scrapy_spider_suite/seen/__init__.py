"""Stores of what was seen, and a cache before them. All but the cache bring numpy."""
