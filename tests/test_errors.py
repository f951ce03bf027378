"""Wrong input raises PyTorch's exception types, at once, with messages that help."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch.nn import functional as F

from tests.support import DEVICE

pytestmark = pytest.mark.skipif(DEVICE == "cpu", reason="these messages are the device's own")


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(*shape, dtype=dtype, device=DEVICE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ones(2, 3) + ones(2, 4), "must match the size"),
        (lambda: ones(2, 3) @ ones(2, 3), "cannot be multiplied"),
        (lambda: torch.cat([ones(2, 3), ones(3, 4)]), "Sizes of tensors must match"),
        (lambda: ones(2, 3).view(4), "is invalid for input of size"),
        (lambda: F.conv2d(ones(1, 3, 8, 8), ones(4, 2, 3, 3)), "channels"),
        (lambda: F.linear(ones(2, 3), ones(4, 5)), "cannot be multiplied"),
        (lambda: ones(2, 3).add_(ones(5, 2, 3)), "doesn't match the broadcast shape"),
        (lambda: ones(2).sum(3), "Dimension out of range"),
    ],
)  # fmt: skip
def test_shapes(call: Callable[[], object], message: str) -> None:
    with pytest.raises((RuntimeError, IndexError), match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ones(2, 3) @ ones(3, 2, dtype=torch.float64), "same dtype"),
        (lambda: ones(2, dtype=torch.int64).add_(0.5), "can't be cast"),
        (lambda: ones(2, dtype=torch.int64).mean(), "floating point or complex"),
        (lambda: ones(2).bitwise_not(), "not implemented|integral and Boolean"),
        (lambda: F.embedding(ones(2), ones(3, 4)), "(?i)expected.*(long|int)"),
    ],
)
def test_dtypes(call: Callable[[], object], message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda: ones(2) + torch.ones(2),
        lambda: torch.ones(2) + ones(2),
        lambda: ones(2, 2) @ torch.ones(2, 2),
        lambda: ones(2).add_(torch.ones(2)),
        lambda: torch.cat([ones(2), torch.ones(2)]),
        lambda: F.linear(ones(2, 3), torch.ones(4, 3)),
        lambda: torch.where(ones(2) > 0, ones(2), torch.ones(2)),
    ],
)
def test_mixed_devices(call: Callable[[], object]) -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        call()


def test_zero_dim_cpu_tensors_mix() -> None:
    assert (ones(2) * torch.tensor(3.0)).tolist() == [3, 3]


def test_out_of_memory_at_once() -> None:
    with pytest.raises(torch.OutOfMemoryError, match="(?i)memory"):
        torch.empty(1 << 46, device=DEVICE)
    assert ones(2).sum().item() == 2


def test_numpy_says_what_to_do() -> None:
    with pytest.raises(TypeError, match=r"\.cpu\(\)"):
        ones(2).numpy()


def test_item_of_many_elements() -> None:
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        ones(2).item()


@pytest.fixture
def debug() -> Iterator[None]:
    with torch.tpu.set_eager_mode("debug"):  # type: ignore[attr-defined]
        yield


@pytest.mark.usefixtures("debug")
@pytest.mark.parametrize(
    "call",
    [
        lambda: ones(3)[torch.tensor([0, 5], device=DEVICE)],
        lambda: ones(3)[torch.tensor([-4], device=DEVICE)],
        lambda: ones(3).index_put_((torch.tensor([7], device=DEVICE),), ones(1)),
        lambda: F.embedding(torch.tensor([3], device=DEVICE), ones(3, 2)),
        lambda: ones(3, 2).index_select(0, torch.tensor([3], device=DEVICE)),
        lambda: ones(3, 2).gather(0, torch.tensor([[3, 0]], device=DEVICE)),
    ],
)
def test_debug_checks_indices(call: Callable[[], object]) -> None:
    with pytest.raises((IndexError, RuntimeError), match="(?i)out of (range|bounds)"):
        call()
    assert ones(3)[torch.tensor([2, -3], device=DEVICE)].tolist() == [1, 1]


@pytest.mark.usefixtures("debug")
def test_debug_names_op_shapes_and_line() -> None:
    with pytest.raises(RuntimeError) as raised:
        ones(2, 3) @ ones(2, 3)
    text = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
    for part in ("mm", "2, 3", "float32", "test_errors.py"):
        assert part in text


#: PyTorch runs it for CPU tensors only by calling back into the user's machine: no device program exists.
def _unsupported() -> torch.Tensor:
    with torch.library._scoped_library("torch_tpu_tests", "FRAGMENT") as library:
        library.define("host_only(Tensor x) -> Tensor")
        library.impl("host_only", lambda x: x + 1, "CPU")
        return torch.ops.torch_tpu_tests.host_only(ones(2, 3))


def test_unsupported_op_is_an_error_on_request() -> None:
    with (
        torch.tpu.set_fallback("error"),  # type: ignore[attr-defined]
        pytest.raises(NotImplementedError, match="host_only"),
    ):
        _unsupported()


def test_unsupported_op_warns_once_and_counts() -> None:
    with torch.tpu.set_fallback("warn"), warnings.catch_warnings(record=True) as caught:  # type: ignore
        warnings.simplefilter("always")
        assert _unsupported().tolist() == [[2, 2, 2], [2, 2, 2]]
        _unsupported()
    named = [w for w in caught if "host_only" in str(w.message)]
    assert len(named) == 1
    assert any("host_only" in k for k in torch.tpu.metrics.snapshot()["fallbacks"])  # type: ignore


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.ones(2, dtype=torch.complex64, device=d).to(torch.float32),
        lambda d: torch.zeros(2, device=d).copy_(torch.ones(2, dtype=torch.complex64, device=d)),
        lambda d: torch.cholesky(torch.eye(13, device=d)),
        lambda d: torch.triangular_solve(torch.ones(13, 1, device=d), torch.eye(13, device=d)),
        lambda d: torch.zeros(13, device=d).index_reduce(
            0, torch.zeros(2, dtype=torch.int64, device=d), torch.ones(2, device=d), "mean"
        ),
        lambda d: torch.empty(2, dtype=torch.complex32, device=d),
    ],
)
def test_warnings_are_the_cpus(call: Callable[[str], object]) -> None:
    def texts(device: str) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call(device)
        return [str(x.message).split(" (Triggered")[0] for x in caught]

    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        actual, expected = texts(DEVICE), texts("cpu")
    finally:
        torch.set_warn_always(always)
    assert set(actual) == set(expected) != set()


def test_an_error_does_not_poison_later_work() -> None:
    x = ones(2, 3)
    with pytest.raises(RuntimeError):
        x @ x
    x.add_(1)
    with pytest.raises(RuntimeError):
        x.add_(ones(7))
    assert x.tolist() == [[2, 2, 2], [2, 2, 2]]
