"""Work on a CUDA device that is recorded once and then replayed. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

Result = TypeVar("Result")


def recorded(
    work: Callable[[Tensor], Result], batch: Tensor
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record work on this tensor; return it with where its results will be.

    To repeat it, copy other values into ``batch`` and call ``replay()``.
    """
    device = batch.device
    beside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    beside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(beside):
        for _ in range(2):  # libraries choose their kernels, and take memory, at first
            work(batch)
    torch.cuda.current_stream(device).wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work(batch)
    return graph, result
