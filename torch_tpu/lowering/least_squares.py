"""`linalg.lstsq`: by QR for the driver of full-rank matrices, else by SVD, which knows the rank."""

from __future__ import annotations

import torch
from torch import Tensor

from torch_tpu.lowering.data_dependent import host

_DRIVERS = ("gels", "gelsy", "gelsd", "gelss")


@host("aten::linalg_lstsq")
def lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, driver: str | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """a [*, m, n], b [*, m, k] or [*, m] -> solution [*, n, k], residuals, rank, singular values."""
    driver = "gelsy" if driver is None else driver
    _check(a, b, driver)
    vector = _is_vector(a, b)
    b = b.unsqueeze(-1) if vector else b
    batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    if driver == "gels":
        solution, values = _by_qr(a, b), a.new_empty(0, dtype=_real(a))
        rank = torch.empty(0, dtype=torch.int64, device=a.device)
    else:
        solution, values, rank = _by_svd(a, b, rcond)
    residuals = _residuals(a, b, solution, rank, driver)
    if driver == "gelsy":
        values = values.new_empty(0)
    return solution.squeeze(-1) if vector else solution, residuals, rank, values


def _real(x: Tensor) -> torch.dtype:
    return x.dtype.to_real() if x.is_complex() else x.dtype


def _is_vector(a: Tensor, b: Tensor) -> bool:
    return b.ndim == 1 or (a.ndim - 1 == b.ndim and a.shape[:-1] == b.shape)


def _check(a: Tensor, b: Tensor, driver: str) -> None:
    if a.ndim < 2:
        raise RuntimeError("torch.linalg.lstsq: input must have at least 2 dimensions.")
    if b.ndim < 1:
        raise RuntimeError("torch.linalg.lstsq: other must have at least 1 dimension.")
    if not 0 <= a.ndim - b.ndim <= 1:
        raise RuntimeError(
            "torch.linalg.lstsq: input.dim() must be greater or equal to other.dim() and "
            f"(input.dim() - other.dim()) <= 1, got {a.ndim} and {b.ndim}"
        )
    if a.dtype != b.dtype:
        raise RuntimeError(
            "torch.linalg.lstsq: Expected input and other to have the same dtype, but got input's dtype "
            f"{a.dtype} and other's dtype {b.dtype}"
        )
    if a.dtype not in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        raise RuntimeError(
            f"torch.linalg.lstsq: Expected a floating point or complex tensor of 32 or 64 bits, got {a.dtype}"
        )
    if a.shape[-2] != b.shape[-1 if _is_vector(a, b) else -2]:
        raise RuntimeError(
            f"torch.linalg.lstsq: input.size(-2) should match other.size({-1 if _is_vector(a, b) else -2}), "
            f"got {list(a.shape)} and {list(b.shape)}"
        )
    if driver not in _DRIVERS:
        raise RuntimeError(
            f"torch.linalg.lstsq: parameter `driver` should be one of {', '.join(_DRIVERS)}, got {driver}"
        )


def _by_qr(a: Tensor, b: Tensor) -> Tensor:
    if a.shape[-2] >= a.shape[-1]:
        q, r = torch.linalg.qr(a)
        return torch.linalg.solve_triangular(r, q.mH @ b, upper=True)
    q, r = torch.linalg.qr(a.mH)
    return q @ torch.linalg.solve_triangular(r.mH, b, upper=False)


def _by_svd(a: Tensor, b: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """The solution of the least norm; singular values below rcond times the largest count as zero."""
    u, values, vh = torch.linalg.svd(a, full_matrices=False)
    eps = torch.finfo(a.dtype).eps
    if rcond is None:
        rcond = eps * max(a.shape[-2:])
    elif rcond < 0:  # LAPACK's word for the machine's precision
        rcond = eps
    kept = values > rcond * values[..., :1]
    inverse = torch.where(kept, 1 / values, 0).unsqueeze(-1)
    return vh.mH @ (inverse * (u.mH @ b)), values, kept.sum(-1)


def _residuals(a: Tensor, b: Tensor, solution: Tensor, rank: Tensor, driver: str) -> Tensor:
    """Sums of squares [*, k] if there are more rows than columns, and those independent; else nothing."""
    rows, columns = a.shape[-2:]
    known = rows > columns and driver != "gelsy"
    if not known or (driver != "gels" and not bool((rank == columns).all().item())):
        return a.new_empty(0, dtype=_real(a))
    return (a @ solution - b).abs().square().sum(-2)
