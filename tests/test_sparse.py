"""Sparse tensors, COO and compressed, agree with the CPU; the common operations without a fallback."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import DEVICE, assert_same, assert_same_parts, counting

NAMES: dict[str, Any] = {"torch": torch, "nn": nn, "copy": copy, "pickle": pickle, "io": io}


def coo(device: str, coalesced: bool = False) -> torch.Tensor:
    indices = torch.tensor([[0, 1, 1, 2, 0], [2, 0, 0, 1, 2]], device=device)
    x = torch.sparse_coo_tensor(indices, torch.tensor([3.0, 4.0, 5.0, -6.0, 7.0], device=device), (3, 4))
    return x.coalesce() if coalesced else x


def hybrid(device: str) -> torch.Tensor:
    indices, values = torch.tensor([[0, 1, 1], [2, 0, 0]], device=device), torch.arange(6.0, device=device)
    return torch.sparse_coo_tensor(indices, values.reshape(3, 2) + 1, (3, 3, 2))


def dense(device: str, *sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0)).to(device)


def csr(device: str) -> torch.Tensor:
    return dense(device, 3, 4).relu().to_sparse_csr()


def plain(x: Any) -> Any:
    """What can be compared: layouts, coalesced elements, dense tensors."""
    if isinstance(x, (tuple, list)):
        return [plain(y) for y in x]
    if not isinstance(x, torch.Tensor):
        return x
    if x.layout == torch.sparse_coo:
        shape = (x.sparse_dim(), x.dense_dim(), tuple(x.shape))
        x = x.cpu().coalesce()
        return ["coo", shape, x.indices(), x.values().detach()]
    if x.layout != torch.strided:
        x = x.cpu()
        by_row = x.layout in (torch.sparse_csr, torch.sparse_bsr)
        indices = [x.crow_indices(), x.col_indices()] if by_row else [x.ccol_indices(), x.row_indices()]
        return [str(x.layout), tuple(x.shape), *indices, x.values()]
    return x.detach().cpu()


def results(program: str) -> list[Any]:
    found = []
    for device in ("cpu", DEVICE):
        names = {**NAMES, "D": device}
        for make in (coo, hybrid, dense, csr):
            names[make.__name__] = lambda *args, make=make, **kwargs: make(device, *args, **kwargs)  # noqa: B023
        value = eval(program, names)
        assert not isinstance(value, torch.Tensor) or value.device.type == device
        found.append(plain(value))
    return found


ON_THE_DEVICE = """
coo()
coo().to_dense()
hybrid().to_dense()
coo().coalesce()
hybrid().coalesce()
dense(3, 4).relu().to_sparse()
dense(2, 3, 4).relu().to_sparse(2)
dense(0, 4).to_sparse()
torch.tensor(3.0, device=D).to_sparse()
coo() + coo()
coo(True) - coo(True) * 2
torch.add(dense(3, 4), coo(), alpha=2)
dense(3, 4).add_(coo(), alpha=-1)
dense(3, 4).t().add_(coo().t())
dense(3, 3, 2) + hybrid()
coo() * coo()
coo() * dense(3, 4)
dense(4) * coo()
coo() / 2
coo().mul_(3)
coo().abs().sqrt()
coo() ** 2
coo().t()
coo().transpose(0, 1).coalesce()
coo(True).permute(1, 0)
coo().sum()
coo().sum(0)
torch.sparse.sum(hybrid(), dim=0)
coo() @ dense(4, 5)
coo() @ dense(4)
dense(5, 3) @ coo()
torch.sparse.addmm(dense(3, 5), coo(), dense(4, 5), beta=2, alpha=3)
torch.addmm(dense(1, 5), coo(), dense(4, 5))
torch.bmm(torch.stack([coo(), coo() * 2]), dense(2, 4, 3))
torch.cat([coo(), coo()])
coo().unsqueeze(0)
coo()[1]
coo().narrow_copy(0, 1, 2)
coo().double()
coo().to(torch.int64)
coo().cpu().to(D)
coo().clone().zero_()
coo().copy_(coo() * 2)
torch.zeros(3, 4, layout=torch.sparse_coo, device=D)
torch.zeros_like(coo())
coo().norm()
coo().is_coalesced()
coo(True).indices()
coo(True).values()
copy.deepcopy(coo())
pickle.loads(pickle.dumps(coo()))
torch.sparse_coo_tensor([[0, 1], [1, 0]], [1.0, 2.0], device=D)
torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.int64), torch.zeros(0), (2, 3), device=D).coalesce()
csr()
csr().to_dense()
csr().to_sparse()
csr().t()
csr().t().to_sparse_csr()
coo(True).to_sparse_csr()
dense(3, 4).to_sparse_csc().to_dense()
dense(4, 4).to_sparse_bsr((2, 2)).to_dense()
torch.sparse_csr_tensor([0, 1, 2], [0, 1], [1.0, 2.0], device=D)
torch.stack([dense(3, 4), dense(3, 4)]).to_sparse_csr().to_dense()
csr() @ dense(4, 2)
csr() @ dense(4)
dense(2, 3) @ csr()
csr().t() @ dense(3, 2)
csr() * 2
csr().neg().sin()
csr().cpu().to(D)
csr().double()
csr()[1]
torch.sparse.mm(coo(), coo().t())
torch.sparse.mm(coo(True), coo(True).t())
coo() @ coo().t()
torch.sparse.mm(coo(), torch.zeros(4, 2, layout=torch.sparse_coo, device=D))
(csr() @ csr().t()).to_dense()
torch.sparse.softmax(coo(True), 1)
torch.sparse.softmax(coo(), 0)
torch.sparse.log_softmax(coo(), 1)
torch.sparse.softmax(hybrid(), 0)
torch.sparse.softmax(hybrid(), 2)
torch.sparse.log_softmax(hybrid(), -1)
torch.sparse.softmax(torch.zeros(3, 4, layout=torch.sparse_coo, device=D), 1)
dense(3, 4).sparse_mask(coo(True))
dense(3, 4).sparse_mask(coo())
dense(3, 3, 2).sparse_mask(hybrid())
coo().sparse_mask(coo(True).t().coalesce().t().coalesce())
coo().sparse_mask(torch.eye(3, 4, device=D).to_sparse())
torch.zeros(3, 4, layout=torch.sparse_coo, device=D).sparse_mask(coo(True))
dense(3, 4).to_sparse().sparse_mask(coo(True))
torch.sparse.sampled_addmm(csr(), dense(3, 2), dense(2, 4))
torch.sparse.sampled_addmm(csr(), dense(3, 2), dense(2, 4), beta=0, alpha=2)
torch.sparse.sampled_addmm(dense(2, 3, 4).to_sparse_csr(), dense(2, 3, 2), dense(2, 2, 4), beta=0.5)
torch.sparse.sampled_addmm(csr(), dense(3, 0), dense(0, 4))
dense(3, 4).sparse_mask(csr())
dense(2, 3, 4).sparse_mask(dense(2, 3, 4).to_sparse_csr())
dense(3, 4).sparse_mask(dense(3, 4).to_sparse_csc())
(csr() * 2).sparse_mask(csr())
torch.sparse.sampled_addmm(csr(), dense(3, 2), dense(2, 4), out=csr() * 3)
""".strip().splitlines()
BY_THE_CPU = """
coo().index_select(0, torch.tensor([1, 0], device=D))
csr() + csr()
csr().sum(0, keepdim=True)
""".strip().splitlines()


@pytest.mark.parametrize("program", ON_THE_DEVICE)
def test_on_the_device(program: str) -> None:
    with counting() as counted:
        expected, actual = results(program)
    assert_same_parts(actual, expected)
    assert not counted.fallbacks


@pytest.mark.parametrize("program", BY_THE_CPU)
def test_by_the_cpu(program: str) -> None:
    with torch.tpu.set_fallback("allow"), counting() as counted:
        expected, actual = results(program)
    assert_same_parts(actual, expected)
    assert counted.fallbacks
    with torch.tpu.set_fallback("error"), pytest.raises(NotImplementedError):
        results(program)


def test_in_place_by_the_cpu_writes_the_tensor() -> None:
    def run(device: str) -> torch.Tensor:
        x = csr(device)
        x.add_(csr(device), alpha=2)
        return x.to_dense().cpu()

    with torch.tpu.set_fallback("allow"):
        assert_same(run(DEVICE), run("cpu"))


@pytest.mark.parametrize(
    "function, matrix",
    [
        (torch.sparse.mm, lambda d: coo(d, True)),
        (torch.mm, csr),
        (lambda a, b: (a * 2 + a).to_dense() @ b, lambda d: coo(d, True)),
        (lambda a, b: (a.to_dense() @ b).to_sparse().to_dense(), lambda d: coo(d, True)),
        (lambda a, b: torch.sparse.mm(a, b, "amax"), csr),
    ],
)
def test_gradients(function: Any, matrix: Any) -> None:
    def run(device: str) -> list[torch.Tensor]:
        a, b = matrix(device), dense(device, 4, 2).requires_grad_()
        a = a.requires_grad_(a.layout == torch.sparse_coo)
        y = function(a, b)
        (y * torch.arange(1.0, 7.0, device=device).reshape(3, 2)).sum().backward()
        return [y.detach().cpu(), *(plain(x.grad.to_dense()) for x in (a, b) if x.grad is not None)]

    with torch.tpu.set_fallback("allow"):
        assert_same_parts(run(DEVICE), run("cpu"))


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.sparse.softmax(x.to_sparse(), 1),
        lambda x, y: torch.sparse.log_softmax(x.to_sparse(), 0),
        lambda x, y: torch.sparse.softmax(x.to_sparse(1), 1),
        lambda x, y: torch.sparse.mm(x.to_sparse(), y.t().to_sparse()),
        lambda x, y: x.sparse_mask(coo(x.device.type, True)) * y,
        lambda x, y: torch.sparse.sampled_addmm(csr(x.device.type), x @ x.t(), y),
    ],
)
def test_gradients_through_sparse_results(function: Any) -> None:
    def run(device: str) -> list[torch.Tensor]:
        x, y = (dense(device, 3, 4).mul(k).requires_grad_() for k in (1, 0.5))
        result = function(x, y).to_dense()
        (result * dense(device, *result.shape)).sum().backward()
        return [plain(result), *(plain(t.grad.to_dense()) for t in (x, y) if t.grad is not None)]

    with torch.tpu.set_fallback("allow"):
        assert_same_parts(run(DEVICE), run("cpu"))


@pytest.mark.parametrize(
    "optimizer, options",
    [
        (torch.optim.SGD, {}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.SparseAdam, {}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_sparse_gradients_of_embeddings(optimizer: Any, options: dict[str, float]) -> None:
    def run(device: str) -> torch.Tensor:
        torch.manual_seed(0)
        table = nn.Embedding(6, 3, sparse=True).to(device)
        steps = optimizer(table.parameters(), lr=0.1, **options)
        for _ in range(3):
            steps.zero_grad()
            table(torch.tensor([[0, 2, 2], [5, 0, 1]], device=device)).square().sum().backward()
            assert table.weight.grad is not None and table.weight.grad.is_sparse
            steps.step()
        return table.weight.detach().cpu()

    assert_same(run(DEVICE), run("cpu"))


@pytest.mark.parametrize(
    "program, text",
    [
        ("coo() + dense(3, 4)", "add\\(sparse, dense\\) is not supported"),
        ("dense(3, 3) + coo()", "same size"),
        ("coo() * dense(3, 4).to_sparse(1)", "same number of sparse dimensions"),
        ("coo() @ dense(3, 4)", "cannot be multiplied|size mismatch"),
        (
            "torch.sparse_coo_tensor([[0, 5], [1, 0]], [1.0, 2.0], (2, 2), device=D, check_invariants=True)",
            "size is inconsistent",
        ),
    ],
)
def test_errors(program: str, text: str) -> None:
    names = {**NAMES, "D": DEVICE, "coo": lambda: coo(DEVICE), "dense": lambda *s: dense(DEVICE, *s)}
    with pytest.raises(RuntimeError, match=text):
        eval(program, names)
