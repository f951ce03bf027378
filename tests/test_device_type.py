"""PyTorch's device-generic test machinery on the device: what every device must do."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.testing import make_tensor
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_dtype import all_types_and_complex_and
from torch.testing._internal.common_utils import TestCase, parametrize, run_tests

from tests.support import DEVICE

ALL = all_types_and_complex_and(torch.bool, torch.float16, torch.bfloat16)

INDICES: dict[str, Callable[[str], Any]] = {
    "int": lambda d: 1,
    "negative": lambda d: -1,
    "ellipsis": lambda d: (..., 2),
    "none": lambda d: (None, slice(1, None), None),
    "steps": lambda d: (slice(None, None, 2), slice(0, 3, 2)),
    "list": lambda d: [0, 2, 1],
    "pairs": lambda d: ([0, 2], [1, 1]),
    "tensor": lambda d: torch.tensor([[0, -1], [1, 1]], device=d),
    "cpu tensor": lambda d: torch.tensor([2, 0]),
    "separated": lambda d: (torch.tensor([0, 1], device=d), slice(None), torch.tensor([3, 0], device=d)),
    "mask": lambda d: torch.tensor([True, False, True], device=d),
    "full mask": lambda d: torch.arange(60, device=d).view(3, 4, 5) % 7 > 3,
    "middle": lambda d: (slice(None), torch.tensor([1, 1, 2], device=d)),
    "nothing": lambda d: torch.tensor([], dtype=torch.int64, device=d),
    "true": lambda d: True,
    "mixed": lambda d: (1, torch.tensor([0, 2], device=d), slice(1, 4)),
}


class TestDevice(TestCase):
    def _base(self, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.arange(60).view(3, 4, 5).to(dtype).to(device)

    @parametrize("name", list(INDICES))
    def test_index(self, device: str, name: str) -> None:
        expected = self._base("cpu")[INDICES[name]("cpu")]
        actual = self._base(device)[INDICES[name](device)]
        self.assertEqual(actual, expected, exact_device=False, exact_stride=False)

    @parametrize("name", list(INDICES))
    def test_index_assignment(self, device: str, name: str) -> None:
        expected, actual = self._base("cpu"), self._base(device)
        for x, where in ((expected, "cpu"), (actual, device)):
            x[INDICES[name](where)] = -1
            x[INDICES[name](where)] *= 2
        self.assertEqual(actual, expected, exact_device=False)

    def test_index_put_accumulates(self, device: str) -> None:
        x = torch.zeros(4, device=device)
        where = torch.tensor([1, 1, -1, 1], device=device)
        x.index_put_((where,), torch.arange(4.0, device=device), accumulate=True)
        self.assertEqual(x.tolist(), [0, 4, 0, 2])

    def test_index_gradient(self, device: str) -> None:
        x = torch.zeros(4, device=device, requires_grad=True)
        x[torch.tensor([1, 1, 3], device=device)].sum().backward()
        assert x.grad is not None
        self.assertEqual(x.grad.tolist(), [0, 2, 0, 1])

    @dtypes(*ALL)
    def test_round_trip(self, device: str, dtype: torch.dtype) -> None:
        for shape in ((), (0,), (3,), (2, 3, 4), (2, 0, 3)):
            x = make_tensor(shape, dtype=dtype, device="cpu")
            y = x.to(device)
            self.assertEqual((y.device.type, y.dtype, y.shape), (torch.device(device).type, dtype, x.shape))
            self.assertEqual(y.cpu(), x, rtol=0, atol=0)
            self.assertEqual(y.to(device).data_ptr(), y.data_ptr())
            if y.numel():
                self.assertNotEqual(y.to(device, copy=True).data_ptr(), y.data_ptr())

    @dtypes(*ALL)
    def test_conversion(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((20,), dtype=dtype, device="cpu", low=0, high=9)
        for target in ALL:
            if dtype.is_complex and not target.is_complex:
                continue
            self.assertEqual(x.to(device).to(target).cpu(), x.to(target), rtol=0, atol=0)

    @dtypes(*ALL)
    def test_item_and_lists(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((2, 2), dtype=dtype, device="cpu")
        self.assertEqual(x.to(device).tolist(), x.tolist())
        item = x.to(device)[1, 0].item()
        self.assertEqual(item, x[1, 0].item())
        self.assertIs(type(item), type(x[1, 0].item()))

    @dtypes(*ALL)
    def test_printing(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((2, 3), dtype=dtype, device="cpu", low=0, high=9)
        text, expected = repr(x.to(device)), repr(x)
        self.assertIn(f"device='{torch.device(device).type}", text)
        self.assertEqual(text.split("]]")[0], expected.split("]]")[0])

    @dtypes(*ALL)
    def test_arithmetic_promotes(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((4,), dtype=dtype, device="cpu", low=1, high=5)
        for other in (torch.float32, torch.int64, torch.bfloat16, torch.bool, torch.complex64):
            y = make_tensor((4,), dtype=other, device="cpu", low=1, high=5)
            for op in (torch.add, torch.mul, torch.true_divide, torch.eq):
                self.assertEqual(op(x.to(device), y.to(device)).cpu(), op(x, y))
        self.assertEqual((x.to(device) + 1).dtype, (x + 1).dtype)
        self.assertEqual((x.to(device) * 1.5).cpu(), x * 1.5)

    @dtypes(*ALL)
    def test_creation(self, device: str, dtype: torch.dtype) -> None:
        for make in (torch.zeros, torch.ones):
            self.assertEqual(make(2, 3, dtype=dtype, device=device).cpu(), make(2, 3, dtype=dtype))
        x = torch.zeros(2, dtype=dtype, device=device)
        self.assertEqual(torch.full_like(x, 1).cpu(), torch.ones(2, dtype=dtype))
        self.assertEqual(x.new_tensor([1, 0]).cpu(), torch.tensor([1, 0], dtype=dtype))
        self.assertEqual(torch.tensor([1, 0], dtype=dtype, device=device).cpu(), x.new_tensor([1, 0]).cpu())

    @dtypes(*ALL)
    def test_sums_and_products(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((3, 4), dtype=dtype, device="cpu", low=0, high=3)
        self.assertEqual(x.to(device).sum(0).cpu(), x.sum(0))
        if dtype != torch.bool:
            self.assertEqual((x.to(device) @ x.to(device).t()).cpu(), x @ x.t())

    @dtypes(torch.float32, torch.bfloat16, torch.int64)
    def test_save_and_load(self, device: str, dtype: torch.dtype) -> None:
        x = make_tensor((3, 4), dtype=dtype, device="cpu")
        buffer = io.BytesIO()
        torch.save({"all": (base := x.to(device)), "part": base.t()[1:]}, buffer)
        for where in (None, "cpu", device):
            buffer.seek(0)
            loaded = torch.load(buffer, map_location=where, weights_only=True)
            self.assertEqual(loaded["all"].device.type, torch.device(where or device).type)
            self.assertEqual(loaded["all"].cpu(), x)
            self.assertEqual(loaded["part"].stride(), x.t()[1:].stride())
            loaded["part"].zero_()
            self.assertEqual(loaded["all"][:, 1:].count_nonzero().item(), 0)

    def test_deepcopy(self, device: str) -> None:
        x = torch.arange(4.0, device=device, requires_grad=True)
        (x * 2).sum().backward()
        pair = copy.deepcopy([x, x])
        self.assertIs(pair[0], pair[1])
        self.assertNotEqual(pair[0].data_ptr(), x.data_ptr())
        self.assertEqual(pair[0].grad, x.grad)

    def test_numpy_arrays_come_in_and_go_out(self, device: str) -> None:
        array = np.arange(6, dtype=np.float32).reshape(2, 3)
        x = torch.as_tensor(array, device=device)
        array[0, 0] = 9
        self.assertEqual(x[0, 0].item(), 0)
        self.assertEqual(x.cpu().numpy(), np.arange(6, dtype=np.float32).reshape(2, 3))

    def test_non_blocking_copies(self, device: str) -> None:
        source = torch.arange(1000.0)
        x = source.to(device, non_blocking=True)
        y = (x + 1).to("cpu", non_blocking=True)
        torch.accelerator.synchronize()
        self.assertEqual(y, source + 1)
        target = torch.zeros(1000)
        target.copy_(x)
        self.assertEqual(target, source)

    def test_source_may_change_after_a_copy(self, device: str) -> None:
        source = torch.zeros(1000)
        x = source.to(device)
        source.fill_(1)
        y = x.cpu()
        x.fill_(2)
        self.assertEqual((y.sum().item(), x.sum().item()), (0, 2000))

    def test_truth_and_iteration(self, device: str) -> None:
        x = torch.tensor([3, 0], device=device)
        self.assertTrue(x[0])
        self.assertFalse(x[1])
        self.assertEqual([int(y) for y in x], [3, 0])
        self.assertEqual(list(range(5))[x[0]], 3)
        self.assertIn(3, x)

    def test_data_dependent_ops(self, device: str) -> None:
        x = torch.tensor([[3, 0, 1], [0, 0, 3]], device=device)
        self.assertEqual(x.nonzero().tolist(), [[0, 0], [0, 2], [1, 2]])
        self.assertEqual(x.unique().tolist(), [0, 1, 3])
        self.assertEqual(x[x > 0].tolist(), [3, 1, 3])
        self.assertEqual(x.masked_select(x == 0).tolist(), [0, 0, 0])
        self.assertEqual(torch.bincount(x.flatten()).tolist(), [3, 1, 0, 2])
        self.assertEqual(torch.where(x)[1].tolist(), [0, 2, 2])

    def test_empty_tensors(self, device: str) -> None:
        x = torch.empty(0, 3, device=device)
        self.assertEqual((x + 1).shape, (0, 3))
        self.assertEqual(x.sum(0).tolist(), [0, 0, 0])
        self.assertEqual((x.t() @ x).cpu(), torch.zeros(3, 3))
        self.assertEqual(torch.cat([x, torch.ones(1, 3, device=device)]).shape, (1, 3))
        with self.assertRaises((RuntimeError, IndexError)):
            x.max()

    def test_storage(self, device: str) -> None:
        x = torch.arange(6.0, device=device)
        storage = x.untyped_storage()
        self.assertEqual((storage.nbytes(), storage.device.type), (24, torch.device(device).type))
        self.assertEqual(x[2:].data_ptr(), x.data_ptr() + 8)
        self.assertEqual(x[2:].untyped_storage().data_ptr(), storage.data_ptr())
        self.assertEqual(storage.cpu().nbytes(), 24)
        self.assertEqual(torch.tensor(storage.tolist(), dtype=torch.uint8).view(torch.float32), x.cpu())

    def test_type_checks(self, device: str) -> None:
        x = torch.ones(2, device=device)
        self.assertTrue(x.is_floating_point())
        self.assertFalse(x.is_cpu)
        self.assertEqual(x.get_device(), x.device.index)
        self.assertEqual(torch.ones_like(x).device, x.device)
        self.assertEqual(x.new_zeros(3).device, x.device)
        with torch.device(device):
            self.assertEqual(torch.zeros(1).device.type, torch.device(device).type)

    def test_comparison_helpers(self, device: str) -> None:
        x = torch.tensor([1.0, float("nan")], device=device)
        self.assertFalse(torch.equal(x, x))
        self.assertTrue(torch.allclose(x, x, equal_nan=True))
        torch.testing.assert_close(x, x.clone(), equal_nan=True)


instantiate_device_type_tests(TestDevice, globals(), only_for=torch.device(DEVICE).type)

if __name__ == "__main__":
    run_tests()
