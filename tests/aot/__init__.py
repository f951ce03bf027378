"""Whether the programs of ops compile for a real TPU, asked of libtpu's compiler, which needs no TPU.

    pip install libtpu==0.0.42.1
    python -m tests.aot [--topology v5e:1x1]

Each line of statements.txt is run on the CPU client, and each program that it makes is compiled for the
TPU, too.
"""
