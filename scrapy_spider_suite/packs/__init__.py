"""Packs of pages."""
