"""Checks."""
CHECKS: dict = {}
