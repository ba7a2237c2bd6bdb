"""The base class of learners, and common parts of the learners in this package."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.entry_points import Registry
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.actor_learner.transport.trajectory import Trajectory
from vinoreward_actors.policies.distributions import Exploration
from vinoreward_actors.policies.policy import Floats, Policy
from vinoreward_actors.policies.spec import Head, PolicySpec
from vinoreward_actors.policies.torch_policy import TorchPolicy, to_policy

State = dict[str, Any]
"""Tensors, numbers and text, nested in dictionaries and lists, as
:func:`~vinoreward.files.read_state` reads them."""
ROWS_AT_A_TIME = 4096


@dataclass(frozen=True, kw_only=True)
class LearnerConfig:
    """Settings common to all learners of this package.

    Attributes:
        gamma: discount per step; n-step targets use its powers.
        learning_rate: of every network, unless a learner has a second one.
        max_grad_norm: maximum norm of a gradient.
        reward_scale: factor for rewards. A network needs hundreds of updates to reach a value of
            100, and until then the policy learns from wrong values.
        reward_clip: clips scaled rewards to plus or minus this; ``None`` for no clipping.
        device: ``"auto"`` uses CUDA if available.
        precision: ``"fp32"``, or ``"bf16"`` (autocast) for hardware that has it; elsewhere that is
            slower.
        seed: of initial weights and all random choices.
    """

    gamma: float = 0.99
    learning_rate: float = 3e-4
    max_grad_norm: float = 40.0
    reward_scale: float = 1.0
    reward_clip: float | None = None
    device: str = "auto"
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        names = ("learning_rate", "max_grad_norm", "reward_scale", "reward_clip")
        values = {name: getattr(self, name) for name in names}
        wrong = {name: each for name, each in values.items() if each is not None and not each > 0}
        if wrong or not 0.0 <= self.gamma <= 1.0 or self.precision not in ("fp32", "bf16"):
            raise ConfigError(
                f"the learner has gamma={self.gamma}, precision={self.precision!r} and "
                f"{wrong or 'valid other settings'}. Expected gamma from 0 to 1, fp32 or bf16, and "
                "positive numbers."
            )

    def make_optimizer(
        self, parameters: Iterator[nn.Parameter], learning_rate: float | None = None
    ) -> torch.optim.Optimizer:
        """Return Adam for some parameters."""
        rate = self.learning_rate if learning_rate is None else learning_rate
        return torch.optim.Adam(parameters, lr=rate, fused=True)

    def rewards(self, rewards: Floats) -> Floats:
        """Return scaled and clipped rewards."""
        scaled: Floats = rewards * self.reward_scale
        if self.reward_clip is None:
            return scaled
        return np.clip(scaled, -self.reward_clip, self.reward_clip)


@dataclass(frozen=True)
class Consumption:
    """A learner's requirements, for the limiter of samples per insert."""

    trajectories: int  # per update; 0 for any number, even none (replay)
    sampled: int = 0  # transitions that one update samples from the replay; 0 without a replay
    minimum: int = 0  # transitions before the first update


def outputs_of(module: TorchPolicy, observations: npt.NDArray[np.generic]) -> Floats:
    """Return a module's head outputs (N, K), float32, a few thousand rows at a time."""
    device = next(module.parameters()).device
    with torch.no_grad():
        parts = [
            module(torch.as_tensor(observations[start : start + ROWS_AT_A_TIME], device=device))[0]
            for start in range(0, max(len(observations), 1), ROWS_AT_A_TIME)
        ]
    outputs: Floats = torch.cat(parts).float().cpu().numpy()
    return outputs


class _Restorable(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block only; the caller's random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class Learner(abc.ABC):
    """Trains one policy on the actors' trajectories; single-threaded, deterministic given its seed.

    A subclass implements :meth:`update`, and calls :meth:`save_parts` with everything that a
    checkpoint needs. ``vinoreward actors --algorithm`` finds those of other packages in the
    entry-point group ``vinoreward.learners``.

    Args:
        spec: the actors' network.
        config: settings.
        head_gain: initial gain of the policy's head.

    Raises:
        ConfigError: a network with a head that it cannot train.
    """

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    heads: ClassVar[tuple[Head, ...]] = get_args(Head)
    """Heads that it can train."""

    def __init__(self, spec: PolicySpec, config: LearnerConfig, *, head_gain: float = 0.01) -> None:
        if spec.head not in self.heads:
            raise ConfigError(
                f"{type(self).__name__} cannot train a network with the head {spec.head!r}. "
                f"Expected {' or '.join(self.heads)}."
            )
        self.spec = spec
        self.updates = 0
        """Gradient steps so far."""
        automatic = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device(automatic if config.device == "auto" else config.device)
        self._settings = config
        with seeded(config.seed):
            self.actor = TorchPolicy(spec, head_gain=head_gain).to(self.device)
        self._parts: dict[str, _Restorable] = {"actor": self.actor}

    @abc.abstractmethod
    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Learn from trajectories.

        Args:
            trajectories: of networks of this spec, of any version. Copy what you keep: their
                memory is reused afterwards.

        Returns:
            dict: metrics; empty if there was not enough data for an update.

        Raises:
            InputError: no trajectories, or some that cannot be batched.
            OutputError: a loss or its gradient is not finite; the weights did not change.
        """

    @property
    def consumption(self) -> Consumption:
        """Requirements of an update; here one trajectory."""
        return Consumption(1)

    @property
    def ready(self) -> bool:
        """Whether an update without new trajectories would do anything."""
        return False

    @property
    def exploration(self) -> Exploration:
        """The actors' current exploration; a stochastic head explores by itself."""
        return Exploration()

    def policy(self, version: int) -> Policy:
        """Return a copy of the actors' policy, as ``version``."""
        return to_policy(self.actor, version=version)

    def evaluate_outputs(self, observations: npt.NDArray[np.generic]) -> Floats:
        """Return the current network's head outputs (N, K) for observations (N, *shape)."""
        return outputs_of(self.actor, observations)

    def save_parts(self, *names: str) -> None:
        """Add attributes with a ``state_dict`` to the state, by name."""
        self._parts |= {name: getattr(self, name) for name in names}

    def computed(self, module: nn.Module, *inputs: Tensor) -> Any:
        """Return ``module(*inputs)`` as float32 tensors."""
        low = self._settings.precision == "bf16"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=low):
            outputs = module(*inputs)
        if isinstance(outputs, Tensor):
            return outputs.float()
        return tuple(part.float() if isinstance(part, Tensor) else part for part in outputs)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array on the learner's device; float64 becomes float32."""
        tensor = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return tensor.float() if tensor.dtype == torch.float64 else tensor

    def array(self, tensor: Tensor, shape: tuple[int, ...]) -> Floats:
        """Return a detached tensor as a float32 array of a shape."""
        array: Floats = tensor.detach().float().cpu().numpy().reshape(shape)
        return array

    def step(
        self, loss: Tensor, optimizer: torch.optim.Optimizer, parameters: Iterator[nn.Parameter]
    ) -> float:
        """Make one optimiser step; return the gradient norm before clipping."""
        trained = list(parameters)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(trained, self._settings.max_grad_norm))
        if not (np.isfinite(norm) and bool(torch.isfinite(loss))):
            raise OutputError(
                f"update {self.updates} has a loss of {float(loss.detach()):.4g} and a gradient of "
                f"norm {norm:.4g}. Expected finite numbers: training has diverged. The weights did "
                "not change: lower the learning rate or max_grad_norm, look for extreme rewards, "
                "and resume from the last checkpoint."
            )
        optimizer.step()
        return norm

    def check_finite(self, name: str, values: Tensor) -> None:
        """Raise OutputError unless all of a network's outputs are finite."""
        if not bool(torch.isfinite(values).all()):
            raise OutputError(
                f"at update {self.updates} the learner's {name} have NaN or infinity. Expected "
                "finite numbers: training has diverged. Lower the learning rate and resume from "
                "the last checkpoint."
            )

    def state(self) -> State:
        """Return everything needed to resume: weights, optimisers, replay, random generators.

        Tensors may share memory with the learner, as in torch's ``state_dict``: save them before
        the next update.
        """
        return {
            "kind": type(self).__name__,
            "spec": self.spec.digest(),
            "updates": self.updates,
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, exactly.

        Raises:
            ConfigError: the state is of another learner.
        """
        saved = (state.get("kind"), state.get("spec"), set(state.get("parts", ())))
        wanted = (type(self).__name__, self.spec.digest(), set(self._parts))
        if saved != wanted:
            raise ConfigError(
                f"the state is of {saved[0]} with parts {sorted(saved[2])}. Expected {wanted[0]} "
                f"of the same network with parts {sorted(wanted[2])}: resume with the "
                "configuration that the run was started with."
            )
        try:
            for name, part in self._parts.items():
                _load(part, state["parts"][name])
            self.updates = int(state["updates"])
        except (KeyError, RuntimeError, InputError) as error:
            raise ConfigError(
                f"the learner's state does not fit ({error}). Expected the state of the same "
                "configuration: sizes of networks and replay must not change."
            ) from error


def _load(part: _Restorable, state: dict[str, Any]) -> None:
    """Load a part's state; an optimiser keeps its own settings, such as its learning rate."""
    groups = part.param_groups if isinstance(part, torch.optim.Optimizer) else []
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    part.load_state_dict(state)
    if isinstance(part, torch.optim.Optimizer):
        for group, own in zip(part.param_groups, settings, strict=True):
            group.update(own)


# mypy wants a concrete class where an abstract one is passed as a type.
LEARNERS = Registry("vinoreward.learners", Learner, "algorithm")  # type: ignore[type-abstract]
"""``impala``, ``dqn``, ``d4pg``, and those of other packages."""
