"""Builds `torch_tpu._C` against the installed torch; everything else is in pyproject.toml."""

import os
from pathlib import Path

import numpy
from setuptools import setup

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # a stale build must not stop its own rebuild
from torch.utils.cpp_extension import BuildExtension, CppExtension

CSRC = Path("torch_tpu/csrc")


class Build(BuildExtension):
    """Keeps objects in build/, so that an editable install compiles only what changed."""

    def finalize_options(self) -> None:
        super().finalize_options()
        self.build_temp = "build/objects"


extension = CppExtension(
    "torch_tpu._C",
    sorted(str(path) for path in CSRC.glob("*.cpp")),
    depends=sorted(str(path) for path in CSRC.glob("*.h")),
    include_dirs=[numpy.get_include()],
    extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"],
    extra_link_args=["-Wl,--as-needed", "-s"],
)

setup(ext_modules=[extension], cmdclass={"build_ext": Build})
