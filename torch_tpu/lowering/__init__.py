"""ATen to JAX, one file per family of ops."""

from torch_tpu.lowering import registry

FAMILIES = (
    "pointwise",
    "special_functions",
    "reductions",
    "cumulative",
    "creation",
    "random",
    "matmul",
    "low_precision",
    "convolution",
    "pooling",
    "resampling",
    "normalization",
    "losses",
    "activations",
    "indexing",
    "scatter",
    "sparse",
    "nested",
    "sorting",
    "shapes",
    "prims",
    "fft",
    "linalg",
    "least_squares",
    "attention",
    "recurrent",
    "foreach",
    "optimizers",
)
registry._FAMILIES[:] = [f"{__name__}.{family}" for family in FAMILIES]
