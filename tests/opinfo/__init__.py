"""PyTorch's own operator samples, run on a device and on the CPU, and compared.

    python -m tests.opinfo --report report.json

A *case* is (op, dtype, variant). Its samples come from `op_db`; both devices compute the same
`Observed` from each (`variants`), and `judge` compares them at PyTorch's tolerances. Cases run in
worker processes (`worker`, `runner`), so a crash or a hang is one failed case; `report` keeps the
results in one JSON file, and a rerun continues where it stopped.
"""
