"""A native PyTorch device for TPUs: `torch.device("tpu")`, and `torch.tpu` beside `torch.cuda`.

`import torch` registers it by itself (the entry point `_autoload`); `import torch_tpu` does so too where
autoloading is off. Neither starts the device nor imports JAX.
"""


def _autoload() -> None:
    """Registers the device; called by PyTorch at the end of `import torch`. Does nothing the second time.

    Raises RuntimeError when another package has taken PrivateUse1, and after a first backward pass.
    """
    from torch_tpu.device.register import register

    register()


# Below _autoload, because `import torch` calls it when `torch_tpu` was imported first.
import torch as _torch  # noqa: E402, F401

_autoload()
