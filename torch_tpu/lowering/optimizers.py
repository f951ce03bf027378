"""Lowerings: optimizers."""
