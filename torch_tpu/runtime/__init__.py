"""PJRT through JAX: the client, programs, transfers, the on-disk cache. Knows no torch ops."""
