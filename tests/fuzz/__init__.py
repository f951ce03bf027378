"""Random programs of views, in-place writes, `out=` forms, ops and copies, run on the CPU and a device.

    python -m tests.fuzz --programs 20000 --seed 0

A program is a list of Python statements over tensors `t0`, `t1`, ... and the device `D` (`program`).
`grammar` writes one by running it on the CPU as it grows, so that every statement is well defined.
Both devices must end with the same values, shapes, strides, offsets, versions and aliasing.
A program that fails is shrunk (`shrink`) and printed as a script.
"""
