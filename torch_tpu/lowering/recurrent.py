"""Lowerings: recurrent."""
