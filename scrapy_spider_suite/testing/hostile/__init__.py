"""Malicious answers, to be served on request: see :mod:`site` for where each is found."""
