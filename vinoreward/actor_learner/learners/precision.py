"""Mixed precision and several devices, used only where a measurement shows them to be faster."""

from __future__ import annotations

import copy
import functools
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from vinoreward.errors import ConfigError

Precision = Literal["auto", "fp32", "bf16"]
MARGIN = 1.15
"""Minimum speed-up of an alternative; less is noise, or not worth bfloat16's lower precision."""
ROUNDS = 5


@dataclass(frozen=True)
class Choice:
    """A choice among equivalent ways to compute: its name, the median seconds of all, and why."""

    name: str
    seconds: Mapping[str, float] = field(default_factory=dict)
    why: str = ""


def fastest(
    candidates: Mapping[str, Callable[[], bool]],
    *,
    rounds: int = ROUNDS,
    clock: Callable[[], float] = time.perf_counter,
) -> Choice:
    """Time candidates in turns; return the fastest, or the first unless another clearly beats it.

    Args:
        candidates: name to a function that computes once and returns whether the result is usable.
            The first one is the default.
        rounds: timed calls of each, after one warm-up call.
        clock: seconds.
    """
    usable = [name for name, compute in candidates.items() if compute()]
    default = next(iter(candidates))
    taken: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        # In turns, so that other load on the machine affects all of them equally.
        for name in usable:
            start = clock()
            candidates[name]()
            taken[name].append(clock() - start)
    seconds = {name: statistics.median(times) for name, times in taken.items()}
    best = min(usable, key=lambda name: seconds[name], default=default)
    if best == default or default not in seconds:
        return Choice(best, seconds, "nothing else was faster")
    ratio = seconds[default] / max(seconds[best], 1e-12)
    if ratio < MARGIN:
        return Choice(default, seconds, f"{best} was only {ratio:.2f} times as fast")
    return Choice(best, seconds, f"{ratio:.2f} times as fast as {default}")


def has_bf16(device: torch.device) -> bool:
    """Whether a device has bfloat16 instructions rather than emulation."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if device.type != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return False
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_bf16") or found.get("amx_bf16"))


class Speed:
    """Computes networks in float32 or bfloat16, on one device or several.

    Args:
        precision: ``"auto"`` decides at the first call of :meth:`probe`.
        data_parallel: whether several CUDA devices may be used.
        device: of the networks.
    """

    def __init__(
        self, precision: Precision, data_parallel: Literal["auto", "off"], device: torch.device
    ) -> None:
        if precision not in ("auto", "fp32", "bf16") or data_parallel not in ("auto", "off"):
            raise ConfigError(
                f"precision is {precision!r} and data_parallel is {data_parallel!r}. Expected "
                "auto, fp32 or bf16, and auto or off."
            )
        self._device = device
        several = device.type == "cuda" and torch.cuda.device_count() > 1
        self._ways: list[str] = ["fp32" if precision == "auto" else precision]
        if precision == "auto" and has_bf16(device):
            self._ways.append("bf16")
        if several and data_parallel == "auto":
            self._ways += [f"{name} on all devices" for name in self._ways]
        self.choice = Choice(self._ways[0], why="nothing else is possible here")
        self._open = len(self._ways) > 1

    def probe(self, module: nn.Module, *inputs: Tensor) -> None:
        """Decide once, by a forward and backward pass of a copy of ``module`` on ``inputs``."""
        if not self._open:
            return
        self._open = False
        twin = copy.deepcopy(module)

        def once(way: str) -> bool:
            made = self._compute(way, twin, *inputs)
            outputs = (
                [made] if isinstance(made, Tensor) else [one for one in made if one is not None]
            )
            torch.stack([part.square().mean() for part in outputs]).sum().backward()  # type: ignore[no-untyped-call]
            gradients = [each.grad for each in twin.parameters() if each.grad is not None]
            # Reading the sum waits for an asynchronous device.
            total = torch.stack([gradient.sum() for gradient in gradients]).sum()
            return bool(torch.isfinite(total))

        self.choice = fastest({way: functools.partial(once, way) for way in self._ways})

    def probe_largest(self, *networks: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
        """Decide once, with the network that has the most weights."""
        module, inputs = max(
            networks, key=lambda network: sum(one.numel() for one in network[0].parameters())
        )
        self.probe(module, *inputs)

    def __call__(self, module: nn.Module, *inputs: Tensor) -> Any:
        """Return ``module(*inputs)`` as float32 tensors, computed the chosen way."""
        return self._compute(self.choice.name, module, *inputs)

    def _compute(self, way: str, module: nn.Module, *inputs: Tensor) -> Any:
        with torch.autocast(
            self._device.type, dtype=torch.bfloat16, enabled=way.startswith("bf16")
        ):
            if way.endswith("devices"):
                found = nn.parallel.data_parallel(module, inputs)
            else:
                found = module(*inputs)
        if isinstance(found, Tensor):
            return found.float()
        return tuple(part.float() if isinstance(part, Tensor) else part for part in found)

    def state_dict(self) -> dict[str, Any]:
        """Return the choice, so that a resumed run computes the same way."""
        return {"name": self.choice.name, "why": self.choice.why, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a choice if it is possible here; otherwise decide again."""
        if state["name"] in self._ways:
            self.choice = Choice(str(state["name"]), why=str(state["why"]))
            self._open = bool(state["open"])
