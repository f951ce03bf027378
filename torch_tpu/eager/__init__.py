"""Eager execution: what happens on a plan miss."""
