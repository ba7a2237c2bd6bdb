"""A stand-in for CUDA graphs, which there may be no device to record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch import Tensor

from vinoreward.backends import cuda_graph


class Graph:
    """Work whose results are there after :meth:`replay` alone, always in the same memory."""

    def __init__(self, work: Callable[[Tensor], Any], batch: Tensor) -> None:
        self.work, self.batch, self.result = work, batch, work(batch)
        for each in _tensors(self.result):
            each.fill_(-7.0)
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1
        for kept, found in zip(*map(_tensors, (self.result, self.work(self.batch))), strict=True):
            kept.copy_(found)


def recorded_on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[Graph]:
    """Let work be recorded on a processor; return the list of what is."""
    graphs: list[Graph] = []

    def capture_graph(work: Callable[[Tensor], Any], batch: Tensor) -> tuple[Graph, Any]:
        graphs.append(Graph(work, batch))
        return graphs[-1], graphs[-1].result

    monkeypatch.setattr(cuda_graph, "capture_graph", capture_graph)
    monkeypatch.setattr(cuda_graph, "CAPTURED_ON", "cpu")
    return graphs


def _tensors(result: Any) -> list[Tensor]:
    return [result] if isinstance(result, Tensor) else [one for one in result if one is not None]
