"""Distributions of returns over fixed atoms (Bellemare et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor


def support(low: float, high: float, count: int, device: torch.device | None = None) -> Tensor:
    """Return ``count`` evenly spaced returns from ``low`` to ``high``, (count,)."""
    return torch.linspace(low, high, count, device=device)


def project(probabilities: Tensor, returns: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution of ``returns + discounts * Z`` on the atoms, (B, N).

    Mass between two atoms is split between them by distance; mass outside goes to the outermost
    atom.

    Args:
        probabilities: (B, N) of Z on the atoms.
        returns: (B,), rewards so far.
        discounts: (B,), of Z; 0 after a termination.
        atoms: (N,), evenly spaced.
    """
    step = atoms[1] - atoms[0]
    moved = (returns[:, None] + discounts[:, None] * atoms).clamp(float(atoms[0]), float(atoms[-1]))
    # A triangle over each atom, as wide as the distance to its neighbours.
    shares = (1.0 - (moved[:, None, :] - atoms[:, None]).abs() / step).clamp(min=0.0)
    return (shares * probabilities[:, None, :]).sum(-1)
