"""Faults that were found by trying to break the device, one test each."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.device.subprocesses import run
from tests.support import assert_same, to

D = "tpu"


@pytest.mark.parametrize("divisor", [256, -1, 40000, 2**40])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_true_division_by_a_number_the_dtype_cannot_hold(dtype: torch.dtype, divisor: int) -> None:
    x = torch.arange(3, dtype=dtype)
    torch.testing.assert_close((x.to(D) / divisor).cpu(), x / divisor)


def test_bool_times_float_keeps_infinities() -> None:
    x, mask = torch.tensor([float("inf"), float("nan"), -1.0]), torch.tensor([False, True, False])
    torch.testing.assert_close((x.to(D) * mask.to(D)).cpu(), x * mask, equal_nan=True)
    z = torch.tensor([-1, 2, 1j])
    assert torch.equal((z.to(D) * mask.to(D)).cpu().view(torch.int32), (z * mask).view(torch.int32))


def test_foreach_in_place_counts_versions() -> None:
    x = torch.rand(3, device=D)
    torch._foreach_mul_([x], 2.0)
    assert x._version == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda d: torch.arange(3, device=d).int().mul_(2.5),
        lambda d: torch.ones(2, device=d).add_(1j),
        lambda d: torch.arange(3, device=d).bool().mul_(2),
        lambda d: torch.arange(2, device=d).softmax(0),
        lambda d: torch.arange(3, device=d).var(),
        lambda d: torch.ones(2, device=d).bool() - 2,
        lambda d: torch.ones(2, 2, device=d) @ torch.ones(2, 2, dtype=torch.float64, device=d),
        lambda d: torch.ones(3, device=d).expand(2, 3).neg_(),
        # numbers that the dtype cannot hold
        lambda d: torch.full((2,), 300, dtype=torch.uint8, device=d),
        lambda d: torch.full_like(torch.zeros(2, device=d).half(), 1e30),
        lambda d: torch.zeros(2, device=d).fill_(1e300),
        lambda d: torch.zeros(2, device=d).int().masked_fill(torch.ones(2, device=d).bool(), 2**40),
        lambda d: torch.zeros(2, device=d).char().clamp(min=-200),
        lambda d: torch.ones(2, device=d).byte().add(1, alpha=300),
        lambda d: torch.zeros(2, device=d).char().scatter(0, torch.zeros(1, device=d).long(), 1000),
        # parameters of distributions
        lambda d: torch.ones(3, device=d).uniform_(2, 1),
        lambda d: torch.ones(3, device=d).normal_(0, -1),
        lambda d: torch.ones(3, device=d).exponential_(-1),
        lambda d: torch.ones(3, device=d).geometric_(0),
        lambda d: torch.ones(3, device=d).random_(3, 3),
        lambda d: torch.ones(3, device=d).bernoulli_(2.0),
        lambda d: torch.arange(3, device=d).uniform_(),
        lambda d: torch.rand_like(torch.arange(3, device=d)),
        lambda d: torch.multinomial(torch.ones(3, device=d), 5),
        # alpha
        lambda d: torch.arange(3, device=d).add_(torch.arange(3, device=d), alpha=2.5),
        lambda d: torch.add(torch.arange(3, device=d), torch.arange(3, device=d), alpha=True),
        # complex numbers have no order
        lambda d: torch.ones(2, device=d) * 1j < 2,
        lambda d: (torch.ones(2, device=d) * 1j).max(),
        lambda d: (torch.ones(2, device=d) * 1j).sign(),
        lambda d: (torch.ones(2, device=d) * 1j).floor(),
        lambda d: (torch.ones(2, device=d) * 1j).sort(),
        lambda d: (torch.ones(2, device=d) * 1j).softmax(0),
        lambda d: torch.arange(2, device=d) < 1j,
        # bools
        lambda d: torch.ones(2, device=d).bool() - 1j,
        lambda d: torch.ones(2, device=d) - True,
    ],
)
def test_refused_as_on_the_cpu(make: object) -> None:
    with pytest.raises((RuntimeError, NotImplementedError)) as expected:
        make("cpu")  # type: ignore[operator]
    with pytest.raises(expected.type) as got:
        make(D)  # type: ignore[operator]
    assert str(expected.value).split("\n")[0] in str(got.value)


@pytest.mark.parametrize("rows", [True, False])
def test_threads_that_write_one_storage(rows: bool) -> None:
    x = torch.ones(4, 8, device=D)

    def write(i: int) -> None:
        for _ in range(100):
            (x[i] if rows else x).add_(1)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        x.cpu()
    for thread in threads:
        thread.join()
    assert x.cpu().unique().tolist() == ([101.0] if rows else [401.0])


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm_as_the_first_layer(train: bool) -> None:
    model, x = nn.BatchNorm1d(3).train(train), torch.randn(4, 3)
    (model(x) ** 3).sum().backward()
    other = nn.BatchNorm1d(3).train(train).to(D)
    (other(x.to(D)) ** 3).sum().backward()
    torch.testing.assert_close(other.weight.grad.cpu(), model.weight.grad)


def test_complex32_copies() -> None:
    x = torch.randn(3, 4, dtype=torch.chalf)
    torch.testing.assert_close(x.to(D)[:, 1:3].clone().cpu(), x[:, 1:3])
    torch.testing.assert_close(x.to(D).conj().clone().cpu(), x.conj().resolve_conj())


def test_decomposed_ops_take_host_numbers_as_data() -> None:
    x = torch.rand(4)
    for number in (2.5, 3.5):
        got = torch.special.xlog1py(x.to(D), torch.tensor(number)).cpu()
        torch.testing.assert_close(got, torch.special.xlog1py(x, number))


def test_in_place_metadata_ops() -> None:
    x = torch.arange(6.0, device=D).view(2, 3)
    x.transpose_(0, 1).add_(1)
    assert x.shape == (3, 2)
    assert x.cpu().tolist() == [[1, 4], [2, 5], [3, 6]]


def test_resized_out_and_factory_out() -> None:
    out = torch.empty(0, device=D)
    assert torch.linspace(0, 1, 5, out=out).cpu().tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert out.shape == (5,)


@pytest.mark.parametrize("contiguous", [True, False])
def test_gradient_of_det_by_layout(contiguous: bool) -> None:
    a = torch.rand(3, 3, dtype=torch.float64)
    grads = []
    for device in ("cpu", D):
        x = a.clone().to(device).requires_grad_()
        (x if contiguous else x.mT).det().backward()
        grads.append(x.grad.cpu())
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("name", ["add", "maximum", "where", "lerp"])
def test_a_resized_out_follows_the_order_of_the_inputs(name: str) -> None:
    x = torch.arange(24.0).reshape(2, 3, 4).transpose(0, 2)
    arguments = {"where": (x > 1, x, x), "lerp": (x, x, 0.5)}.get(name, (x, x))
    expected = getattr(torch, name)(*arguments, out=torch.empty(0))
    moved = [a.to(D) if isinstance(a, torch.Tensor) else a for a in arguments]
    out = getattr(torch, name)(*moved, out=torch.empty(0, device=D))
    assert out.stride() == expected.stride() != expected.contiguous().stride()
    assert torch.equal(out.cpu(), expected)


def test_numbers_are_checked_when_the_plan_is_known() -> None:
    x = torch.zeros(3, device=D)
    draws = [
        lambda low, high: x.uniform_(low, high),
        lambda low, high: x.normal_(0.0, high - low),
        lambda low, high: x.random_(int(low), int(high)),
    ]
    for draw in draws:
        draw(0.0, 1.0)
        with pytest.raises(RuntimeError):
            draw(2.0, 1.0)
        draw(0.0, 2.0)
    small = torch.zeros(3, dtype=torch.uint8, device=D)
    small.fill_(255)
    with pytest.raises(RuntimeError, match="cannot be converted to type uint8_t without overflow"):
        small.fill_(256)
    assert small.tolist() == [255] * 3


def test_asking_the_cpu_draws_nothing_from_its_generator() -> None:
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    torch.ones(5, device=D).normal_(0.5, 0.25)
    with pytest.raises(RuntimeError):
        torch.multinomial(torch.ones(3, device=D), 5)
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("name", ["addmm", "addmv", "baddbmm", "addbmm"])
def test_integer_products_take_the_integer_part_of_alpha_and_beta(name: str) -> None:
    shapes = {
        "addmm": ((2, 2), (2, 2), (2, 2)),
        "addmv": ((2,), (2, 2), (2,)),
        "baddbmm": ((1, 2, 2),) * 3,
        "addbmm": ((2, 2), (1, 2, 2), (1, 2, 2)),
    }
    arguments = [torch.ones(shape, dtype=torch.int64) for shape in shapes[name]]
    got = getattr(torch, name)(*(a.to(D) for a in arguments), beta=1.7, alpha=2.5)
    assert torch.equal(got.cpu(), getattr(torch, name)(*arguments, beta=1.7, alpha=2.5))


def test_shifts_of_bools_by_numbers() -> None:
    x = torch.tensor([True, False])
    assert torch.equal((x.to(D) << 2).cpu(), x << 2)
    assert (x.to(D) << 2).dtype == (x << 2).dtype


def test_results_without_a_dtype_in_xla_fall_back() -> None:
    x = torch.ones(2, dtype=torch.half)
    with torch.tpu.set_fallback("allow"):
        got = torch.complex(x.to(D), x.to(D)).cpu()
    torch.testing.assert_close(got, torch.complex(x, x))


def test_half_meets_a_complex_number() -> None:
    x = torch.tensor([1.0, 2.0]).half()
    assert (x.to(D) == 1j).tolist() == (x == 1j).tolist()
    torch.testing.assert_close((x.to(D) + 1j).cpu(), x + 1j)


def test_minus_zero_stays_where_the_cpu_keeps_it() -> None:
    x = torch.tensor([-0.0, 0.0, float("nan"), -1.0])
    for f in (torch.relu, lambda t: t.clamp(min=0), lambda t: t.clamp(max=0), lambda t: F.hardtanh(t, 0, 6)):
        assert torch.equal(torch.signbit(f(x.to(D))).cpu(), torch.signbit(f(x)))


@pytest.mark.parametrize("options", [{}, {"stride": 2, "padding": 1, "output_padding": 1}, {"groups": 2}])
def test_transposed_convolution_of_integers(options: dict[str, int]) -> None:
    x, w = torch.randint(-9, 9, (2, 4, 5, 6)), torch.randint(-9, 9, (4, 3, 2, 3))
    got = F.conv_transpose2d(x.to(D), w.to(D), **options)
    assert torch.equal(got.cpu(), F.conv_transpose2d(x, w, **options))


def test_histogramdd_and_unique_of_unsigned() -> None:
    x = torch.rand(5, 2)
    got, expected = torch.histogramdd(x.to(D), [2, 3]), torch.histogramdd(x, [2, 3])
    torch.testing.assert_close(got.hist.cpu(), expected.hist)
    torch.testing.assert_close([e.cpu() for e in got.bin_edges], list(expected.bin_edges))
    assert torch.unique(torch.tensor([3, 1, 3], dtype=torch.uint16, device=D)).tolist() == [1, 3]


def test_process_ends_while_an_event_waits() -> None:
    script = """
        import torch
        x, event = torch.rand(1500, 1500, device="tpu"), torch.tpu.Event(enable_timing=True)
        for _ in range(20):
            x = x @ x
        event.record()
        """
    run(script)


def test_a_tensor_twice_in_a_foreach_list() -> None:
    def run(device: str) -> torch.Tensor:
        x = torch.arange(6.0, device=device)
        torch._foreach_mul_([x, x[2:], x[:1]], 2.0)
        torch._foreach_add_([x, x], [x.clone(), x.clone()], alpha=3)
        torch._foreach_addcmul_([x, x], [x.clone(), x.clone()], [x.clone(), x.clone()], [2.0, 3.0])
        return x.cpu()

    assert torch.equal(run(D), run("cpu"))


ZEROS = "torch.tensor([0.0, -0.0, 0.0, -0.0], device=D)"
OUT_OF_INT8 = "torch.tensor([300.0, -1.5, 70000.0, -129.0], device=D)"


@pytest.mark.parametrize(
    "program",
    [
        f"torch.sort({ZEROS}, stable=True)[1]",
        f"torch.sort({ZEROS}, stable=True, descending=True)[1]",
        "torch.randperm(300, dtype=torch.uint8, device=D)",
        "torch.randperm(3000, dtype=torch.float16, device=D)",
        "torch.randint(0, 300, (2,), dtype=torch.uint8, device=D)",
        "torch.randint_like(torch.zeros(3, device=D, dtype=torch.int8), 300)",
        "F.conv_transpose2d(torch.ones(2, 4, 5, 5, device=D), torch.ones(4, 3, 3, 3, device=D), stride=2,"
        " output_padding=3)",
        "torch.zeros(3, device=D).masked_fill_(torch.ones(3, device=D), 1)",
        "torch.zeros(3, device=D).masked_fill(torch.ones(3, device=D, dtype=torch.int64), 1)",
        "torch.zeros(3, device=D).masked_scatter(torch.ones(3, device=D), torch.ones(3, device=D))",
        "torch.nonzero(torch.ones(3, device=D), out=torch.empty(3, device=D))",
        "torch.zeros(2, device=D) + 2**63",
        "torch.ones(2, device=D) < 2**63",
        "torch.ones(2, device=D).clamp(max=2**63)",
        "torch.full((2,), 2**63, dtype=torch.float32, device=D)",
        "torch.full((2,), 2**64 - 1, dtype=torch.uint64, device=D)",
        "torch.full((2,), 2**63, device=D)",
        "torch.zeros(2, dtype=torch.uint64, device=D).fill_(2**63)",
        "torch.zeros(2, dtype=torch.uint64, device=D) == 2**63",
        "torch.ones(3, dtype=torch.int64, device=D) + 2**63",
        "torch.ones(2, device=D).pow(2**63)",
        f"{OUT_OF_INT8}.to(torch.uint8)",
        f"{OUT_OF_INT8}.to(torch.int8)",
        f"{OUT_OF_INT8}.to(torch.int16)",
        "F.multi_margin_loss(torch.tensor(0.5, device=D), torch.tensor(0, device=D))",
        "F.multilabel_margin_loss(torch.tensor(0.5, device=D), torch.tensor(0, device=D))",
    ],
)
def test_as_on_the_cpu(program: str) -> None:
    """The same result, or the same kind of error with the same beginning."""
    results: list[Any] = []
    for device in ("cpu", D):
        try:
            results.append(eval(program, {"torch": torch, "F": F, "D": device}).cpu())
        except Exception as error:
            results.append(f"{type(error).__name__}: {error}"[:50])
    if isinstance(results[0], str):
        assert results[1] == results[0]
    else:
        assert_same(results[1], results[0])


@pytest.mark.parametrize("read", ["x + 1", "x.cpu()", "x.tolist()", "x.zero_()", "repr(x)", "x.sum()"])
def test_a_freed_storage_is_not_read(read: str) -> None:
    x = torch.arange(4.0, device=D)
    x.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="requires a storage of 16 bytes, but its storage has 0"):
        eval(read, {"x": x})
    x.untyped_storage().resize_(16)
    assert x.fill_(3).tolist() == [3.0] * 4


@pytest.mark.parametrize("device", ["cpu", "meta", "tpu"])
@pytest.mark.parametrize(
    "make",
    [torch.zeros_like, torch.ones_like, torch.rand_like, torch.randn_like, torch.empty_like]
    + [lambda x, **k: torch.full_like(x, 2, **k), lambda x, **k: torch.randint_like(x, 5, **k)]
    + [lambda x, **k: x.new_zeros(3, **k), lambda x, **k: x.new_ones(3, **k)]
    + [lambda x, **k: x.new_full((2,), 3.0, **k)],
)
def test_factories_on_another_device(make: Any, device: str) -> None:
    made = make(torch.ones(2, device=D), device=device, dtype=torch.float64)
    assert made.device.type == device and made.dtype == torch.float64


def test_packed_sequences() -> None:
    x = torch.randn(3, 2, 4)
    for lengths, options in (([3, 2], {}), (torch.tensor([2, 3]), {"enforce_sorted": False})):
        other = x.to(D).requires_grad_()
        packed = nn.utils.rnn.pack_padded_sequence(other, lengths, **options)  # type: ignore[arg-type]
        expected = nn.utils.rnn.pack_padded_sequence(x, lengths, **options)  # type: ignore[arg-type]
        assert torch.equal(packed.data.cpu(), expected.data)
        assert torch.equal(packed.batch_sizes, expected.batch_sizes)
        nn.utils.rnn.pad_packed_sequence(packed)[0].sum().backward()
        assert other.grad is not None and other.grad.sum() == 20
    assert nn.utils.rnn.pack_sequence([torch.ones(3, 2, device=D)]).data.shape == (3, 2)


@pytest.mark.parametrize(
    "module",
    [nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(3, 2, 3, stride=2), nn.PixelShuffle(1), nn.ReflectionPad2d(1)]
    + [nn.ReplicationPad2d(1), nn.ChannelShuffle(3)],
)
def test_channels_last_is_kept(module: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    for given in (x, x.to(memory_format=torch.channels_last)):
        assert to(module)(given.to(D)).stride() == module(given).stride()


def test_an_op_that_is_defined_anew() -> None:
    for extra in ("", ", int k=0", ""):
        with torch.library._scoped_library("torch_tpu_tests", "FRAGMENT") as library:
            library.define(f"anew(Tensor x{extra}) -> Tensor")
            library.impl("anew", lambda x, k=0: x + 1, "CPU")
            with torch.tpu.set_fallback("allow"):
                y = torch.ops.torch_tpu_tests.anew(torch.ones(2, device=D), *((2,) if extra else ()))
        assert y.tolist() == [2, 2]
