"""Torch parts of learners: critics, probabilities of actions, and how networks are computed.

Mixed precision serves only where a measurement shows it to be faster.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.distributions import EDGE, LOG_STD
from vinoreward_actors.policies.spec import Conv, Flatten, PolicySpec

Module = TypeVar("Module", bound=nn.Module)
Precision = Literal["auto", "fp32", "bf16"]
MARGIN = 1.15
"""Minimum speed-up of an alternative; less is noise, or not worth bfloat16's lower precision."""
ROUNDS = 5
HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def gaussian(spec: PolicySpec, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Return means and log standard deviations (N, A), before the tanh, of a Gaussian head."""
    return outputs[:, : spec.actions], outputs[:, spec.actions :].clamp(*LOG_STD)


def log_prob(spec: PolicySpec, outputs: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability (N,) of executed actions, (N,) int64 or (N, A) in [-1, 1]."""
    if spec.discrete:
        return functional.log_softmax(outputs, -1).gather(-1, actions[:, None])[:, 0]
    mean, log_std = gaussian(spec, outputs)
    bounded = actions.clamp(-EDGE, EDGE)
    before = torch.atanh(bounded)
    normal = -0.5 * ((before - mean) * torch.exp(-log_std)) ** 2 - log_std - HALF_LOG_TWO_PI
    return (normal - torch.log1p(-(bounded**2))).sum(-1)


def entropy(spec: PolicySpec, outputs: Tensor) -> Tensor:
    """Return the entropy (N,) in nats; of the Gaussian before the tanh for continuous actions."""
    if spec.discrete:
        logs = functional.log_softmax(outputs, -1)
        return -(logs.exp() * logs).sum(-1)
    _, log_std = gaussian(spec, outputs)
    return (log_std + HALF_LOG_TWO_PI + 0.5).sum(-1)


def sample(spec: PolicySpec, outputs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return actions (N, A) in [-1, 1] of a ``tanh_gaussian`` head, and log densities (N,).

    Both are differentiable; ``noise`` (N, A) is normally distributed.
    """
    mean, log_std = gaussian(spec, outputs)
    before = mean + log_std.exp() * noise
    normal = -0.5 * noise**2 - log_std - HALF_LOG_TWO_PI
    # log(1 - tanh(u)^2), without cancellation where tanh is near 1.
    log_slope = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
    return torch.tanh(before), (normal - log_slope).sum(-1)


def project(probabilities: Tensor, returns: Tensor, discounts: Tensor, atoms: Tensor) -> Tensor:
    """Return the distribution (B, N) of ``returns + discounts * Z`` on N evenly spaced atoms.

    ``probabilities`` (B, N) are those of Z, ``returns`` and ``discounts`` (B,). Mass between two
    atoms is split between them by distance; mass outside goes to the outermost atom (Bellemare et
    al. 2017).
    """
    step = atoms[1] - atoms[0]
    moved = (returns[:, None] + discounts[:, None] * atoms).clamp(float(atoms[0]), float(atoms[-1]))
    # A triangle over each atom, as wide as the distance to its neighbours.
    shares = (1.0 - (moved[:, None, :] - atoms[:, None]).abs() / step).clamp(min=0.0)
    return (shares * probabilities[:, None, :]).sum(-1)


class Critic(nn.Module):
    """A network from an observation and an action to one or more numbers.

    Images go through convolutions like the policy's, with separate weights. ``normalised`` gives
    the first dense layer LayerNorm and tanh: large observations do not saturate later layers.
    """

    def __init__(
        self, spec: PolicySpec, hidden: Sequence[int], outputs: int, *, normalised: bool = False
    ) -> None:
        super().__init__()
        self._scale = spec.scale
        trunk: list[nn.Module] = []
        shapes = spec.shapes()
        width = spec.observation_shape[0]
        for index, layer in enumerate(spec.layers):
            if isinstance(layer, Conv):
                trunk += [
                    nn.Conv2d(layer.inputs, layer.outputs, layer.kernel, layer.stride),
                    nn.ReLU(),
                ]
            elif isinstance(layer, Flatten):
                trunk.append(nn.Flatten())
                width = shapes[index + 1][0]
        self.trunk = nn.Sequential(*trunk)
        layers: list[nn.Module] = []
        sizes = [width + spec.actions, *hidden]
        for index, (inputs, width) in enumerate(itertools.pairwise(sizes)):
            normal = normalised and index == 0
            activation = [nn.LayerNorm(width), nn.Tanh()] if normal else [nn.ReLU()]
            layers += [nn.Linear(inputs, width), *activation]
        layers.append(nn.Linear(sizes[-1], outputs))
        self.dense = nn.Sequential(*layers)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return (N, outputs) for observations (N, *shape) and actions (N, A)."""
        features = self.trunk(observations.float() * self._scale)
        outputs: Tensor = self.dense(torch.cat([features, actions], 1))
        return outputs


class Twins(nn.Module):
    """Two critics with one output each (Fujimoto et al. 2018)."""

    def __init__(self, spec: PolicySpec, hidden: Sequence[int]) -> None:
        super().__init__()
        self.one = Critic(spec, hidden, 1)
        self.other = Critic(spec, hidden, 1)

    def forward(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return (N, 2)."""
        both = [self.one(observations, actions), self.other(observations, actions)]
        return torch.cat(both, 1)


def frozen_copy(module: Module) -> Module:
    """Return a copy of a network, without gradients."""
    return copy.deepcopy(module).requires_grad_(False)


def polyak_update(target: nn.Module, module: nn.Module, share: float) -> None:
    """Move a target network by ``share`` towards a network; 1 copies it."""
    with torch.no_grad():
        for old, new in zip(target.parameters(), module.parameters(), strict=True):
            old.lerp_(new, share)


# How networks are computed


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

    A candidate computes once and returns whether the result is usable; it is timed for ``rounds``
    calls after one warm-up call.
    """
    usable = [name for name, compute in candidates.items() if compute()]
    default = next(iter(candidates))
    times: dict[str, list[float]] = {name: [] for name in usable}
    for _ in range(rounds):
        # In turns, so that other load on the machine affects all of them equally.
        for name in usable:
            start = clock()
            candidates[name]()
            times[name].append(clock() - start)
    seconds = {name: statistics.median(measured) for name, measured in times.items()}
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
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


class Speed:
    """Computes networks in float32 or bfloat16; see LearnerConfig.

    ``"auto"`` decides at the first call of :meth:`probe`.
    """

    def __init__(self, precision: Precision, device: torch.device) -> None:
        if precision not in ("auto", "fp32", "bf16"):
            raise ConfigError(field="precision", value=precision, expected="auto, fp32 or bf16")
        self._device = device
        self._ways: list[str] = ["fp32" if precision == "auto" else precision]
        if precision == "auto" and has_bf16(device):
            self._ways.append("bf16")
        self.choice = Choice(self._ways[0], why="nothing else is possible here")
        self._open = len(self._ways) > 1

    def probe(self, module: nn.Module, *inputs: Tensor) -> None:
        """Decide once, by a forward and backward pass of a copy of ``module`` on ``inputs``."""
        if not self._open:
            return
        self._open = False
        twin = copy.deepcopy(module)

        def once(way: str) -> bool:
            computed = self._compute(way, twin, *inputs)
            outputs = [computed] if isinstance(computed, Tensor) else computed
            losses = [part.square().mean() for part in outputs if part is not None]
            torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
            gradients = [each.grad for each in twin.parameters() if each.grad is not None]
            # Reading the sum waits for an asynchronous device.
            total = torch.stack([gradient.sum() for gradient in gradients]).sum()
            return bool(torch.isfinite(total))

        self.choice = fastest({way: functools.partial(once, way) for way in self._ways})

    def probe_largest(self, *networks: tuple[nn.Module, tuple[Tensor, ...]]) -> None:
        """Decide once, with the network that has the most weights."""
        sizes = [sum(each.numel() for each in module.parameters()) for module, _ in networks]
        module, inputs = networks[sizes.index(max(sizes))]
        self.probe(module, *inputs)

    def __call__(self, module: nn.Module, *inputs: Tensor) -> Any:
        """Return ``module(*inputs)`` as float32 tensors, computed the chosen way."""
        return self._compute(self.choice.name, module, *inputs)

    def _compute(self, way: str, module: nn.Module, *inputs: Tensor) -> Any:
        with torch.autocast(self._device.type, dtype=torch.bfloat16, enabled=way == "bf16"):
            outputs = module(*inputs)
        if isinstance(outputs, Tensor):
            return outputs.float()
        return tuple(part.float() if isinstance(part, Tensor) else part for part in outputs)

    def state_dict(self) -> dict[str, Any]:
        """Return the choice, so that a resumed run computes the same way."""
        return {"name": self.choice.name, "why": self.choice.why, "open": self._open}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a choice if it is possible here; otherwise decide again."""
        if state["name"] in self._ways:
            self.choice = Choice(str(state["name"]), why=str(state["why"]))
            self._open = bool(state["open"])
