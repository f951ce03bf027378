"""Lowerings: resampling."""
