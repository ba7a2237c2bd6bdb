"""A network's work on a device, of which the host waits for nothing. Importing this imports torch.

On CUDA, work on equal pieces of a batch is recorded once and then replayed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

import torch
from torch import Tensor

from vinoreward.errors import OutputError

Result = TypeVar("Result")
CAPTURED_ON = "cuda"
"""Type of the devices on which work is recorded; tests set another."""


class Replayed(Generic[Result]):
    """Work on images; on CUDA that on one shape is recorded (a CUDA graph) and then replayed.

    Args:
        shape: ``(N, H, W, 3)`` of the images in most calls.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._shape = shape
        self._captured: tuple[Tensor, torch.cuda.CUDAGraph, Result] | None = None

    def __call__(self, work: Callable[[Tensor], Result], images: Tensor) -> Result:
        """Return what the work, the same in each call, gives; the next call may overwrite it."""
        # The work is not kept: its owner has this, and would wait for Python's collector.
        if images.device.type != CAPTURED_ON or images.shape != self._shape:
            return work(images)
        if self._captured is None:
            batch = images.clone()
            self._captured = batch, *capture_graph(work, batch)
        batch, graph, result = self._captured
        batch.copy_(images)
        graph.replay()
        return result


def capture_graph(
    work: Callable[[Tensor], Result], batch: Tensor
) -> tuple[torch.cuda.CUDAGraph, Result]:
    """Record work on this tensor; return it with where its results will be."""
    device = batch.device
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        for _ in range(2):  # libraries choose their kernels, and take memory, at first
            work(batch)
    torch.cuda.current_stream(device).wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = work(batch)
    return graph, result


def equal_pieces(count: int, most: int) -> list[slice]:
    """Return slices of N, of one size of at most ``most``; the last two share rows if they must."""
    size = -(-count // -(-count // most))
    starts = (min(start, count - size) for start in range(0, count, size))
    return [slice(start, start + size) for start in starts]


class FiniteCheck:
    """Remembers on a device whether a network gave NaN or infinity."""

    def __init__(self, device: torch.device | str) -> None:
        self._broken = torch.zeros((), dtype=torch.bool, device=device)

    def of(self, numbers: Tensor) -> Tensor:
        """Return where numbers are finite."""
        finite = torch.isfinite(numbers)
        self._broken = self._broken | ~finite.all()
        return finite

    def check(self, network: str, instead: str) -> None:
        """Raise OutputError, once, if any was not; the host waits for the device."""
        if bool(self._broken):
            self._broken = torch.zeros_like(self._broken)
            raise OutputError(
                f"the {network} returned NaN or infinity for images of steps before this reset; "
                f"{instead}. Expected finite numbers: the weights are broken or overflow. Use "
                f'precision="fp32", or train the {network} again.'
            )
