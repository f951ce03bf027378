"""Measurements: `python -m benchmarks.dispatch`, `training`, `memory`, `startup`, `recompiles`."""
