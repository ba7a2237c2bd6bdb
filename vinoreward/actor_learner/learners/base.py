"""The base class of learners, and common parts of the learners in this package."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from vinoreward.actor_learner.learners.config import LearnerConfig
from vinoreward.actor_learner.learners.precision import Speed
from vinoreward.actor_learner.transport.trajectory import Trajectory
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.policies.distributions import Exploration
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.spec import Head, PolicySpec
from vinoreward.policies.torch_policy import TorchPolicy, from_policy, to_policy

State = dict[str, Any]
"""Tensors, numbers and text, nested in dictionaries and lists, as
:func:`~vinoreward.saved_state.read_state` reads them."""
ROWS_AT_A_TIME = 4096


@dataclass(frozen=True)
class Consumption:
    """A learner's requirements, for the limiter of samples per insert.

    Attributes:
        trajectories: per update; 0 for any number, even none (replay).
        sampled: transitions that one update samples from the replay; 0 without a replay.
        minimum: transitions before the first update.
        any_age: whether old experience is as good as new, so that none is dropped.
    """

    trajectories: int
    sampled: int = 0
    minimum: int = 0
    any_age: bool = False


class Learner(abc.ABC):
    """Trains one policy on the actors' trajectories; single-threaded, deterministic given its seed.

    A subclass implements four methods, because they differ for every algorithm: the update, the
    actors' policy, and saving and loading state. :class:`ModuleLearner` leaves only :meth:`update`.
    ``vinoreward actors --algorithm`` finds the learners of other packages in the entry-point group
    ``vinoreward.learners``.

    Args:
        spec: the actors' network.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.updates = 0
        """Gradient steps so far."""

    @property
    def consumption(self) -> Consumption:
        """Requirements of an update; here one trajectory."""
        return Consumption(1)

    @abc.abstractmethod
    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Learn from trajectories.

        Args:
            trajectories: of networks of this spec, of any version. Copy what you keep: their
                memory is reused afterwards.

        Returns:
            dict: metrics; empty if there was not enough data for an update.

        Raises:
            InputError: trajectories of another network or of other shapes.
            OutputError: a loss or its gradient is not finite; the weights did not change.
        """

    @abc.abstractmethod
    def policy(self, version: int) -> Policy:
        """Return a copy of the actors' policy, as ``version``."""

    @abc.abstractmethod
    def state(self) -> State:
        """Return everything needed to resume: weights, optimisers, replay, random generators.

        Tensors may share memory with the learner, as in torch's ``state_dict``: save them before
        the next update.
        """

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state` returned, exactly.

        Raises:
            ConfigError: the state is of another learner.
        """

    @property
    def ready(self) -> bool:
        """Whether an update without new trajectories would do anything."""
        return False

    @property
    def exploration(self) -> Exploration:
        """The actors' current exploration; a stochastic head explores by itself."""
        return Exploration()

    def evaluate_outputs(self, observations: npt.NDArray[np.generic]) -> Floats:
        """Return the current network's head outputs (N, K) for observations (N, *shape)."""
        return outputs_of(from_policy(self.policy(0)), observations)


def outputs_of(module: TorchPolicy, observations: npt.NDArray[np.generic]) -> Floats:
    """Return a module's head outputs (N, K), float32, a few thousand rows at a time."""
    device = next(module.parameters()).device
    with torch.no_grad():
        parts = [
            module(torch.as_tensor(observations[start : start + ROWS_AT_A_TIME], device=device))[0]
            for start in range(0, max(len(observations), 1), ROWS_AT_A_TIME)
        ]
    found: Floats = torch.cat(parts).float().cpu().numpy()
    return found


class _Restorable(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> Any: ...


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch inside the block only; the caller's random state does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class ModuleLearner(Learner):
    """A learner of torch modules: saves its parts and makes checked optimiser steps.

    A subclass implements :meth:`update`, and adds everything that a checkpoint needs to
    ``self._parts``.

    Args:
        spec: the actors' network.
        config: settings.
        head_gain: initial gain of the policy's head.

    Raises:
        ConfigError: a network whose head it cannot train.
    """

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    heads: ClassVar[tuple[Head, ...]] = get_args(Head)
    """Heads that it can train."""

    def __init__(self, spec: PolicySpec, config: LearnerConfig, *, head_gain: float = 0.01) -> None:
        super().__init__(spec)
        if spec.head not in self.heads:
            raise ConfigError(
                f"{type(self).__name__} cannot train a network with the head {spec.head!r}. "
                f"Expected {' or '.join(self.heads)}."
            )
        if config.device == "auto":
            self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        else:
            self.device = torch.device(config.device)
        self.speed = Speed(config.precision, config.data_parallel, self.device)
        self._settings = config
        with seeded(config.seed):
            self.actor = TorchPolicy(spec, head_gain=head_gain).to(self.device)
        self.draws = torch.Generator(self.device)
        self.draws.manual_seed(config.seed)
        self._parts: dict[str, _Restorable] = {"actor": self.actor}

    def policy(self, version: int) -> Policy:
        """Return a copy of the policy network, in full precision."""
        return to_policy(self.actor, version=version)

    def evaluate_outputs(self, observations: npt.NDArray[np.generic]) -> Floats:
        """Return the current network's head outputs (N, K) for observations (N, *shape)."""
        return outputs_of(self.actor, observations)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array on the learner's device; float64 becomes float32."""
        found = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return found.float() if found.dtype == torch.float64 else found

    def normal(self, *shape: int) -> Tensor:
        """Sample from a normal distribution with the learner's own generator."""
        return torch.randn(*shape, generator=self.draws, device=self.device)

    def step(
        self, loss: Tensor, optimizer: torch.optim.Optimizer, parameters: Iterator[nn.Parameter]
    ) -> float:
        """Make one optimiser step; return the gradient norm before clipping.

        Raises:
            OutputError: loss or gradient are not finite; the weights did not change.
        """
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
        """Return the states of all parts; see :meth:`Learner.state`."""
        return {
            "kind": type(self).__name__,
            "spec": self.spec.digest(),
            "updates": self.updates,
            "draws": self.draws.get_state(),
            "speed": self.speed.state_dict(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state; see :meth:`Learner.load_state`."""
        found = (state.get("kind"), state.get("spec"), set(state.get("parts", ())))
        wanted = (type(self).__name__, self.spec.digest(), set(self._parts))
        if found != wanted:
            raise ConfigError(
                f"the state is of {found[0]} with parts {sorted(found[2])}. Expected {wanted[0]} "
                f"of the same network with parts {sorted(wanted[2])}: resume with the "
                "configuration that the run was started with."
            )
        try:
            for name, part in self._parts.items():
                asked = settings_of(part)
                part.load_state_dict(state["parts"][name])
                take_settings(part, asked)
            self.updates = int(state["updates"])
            self.draws.set_state(state["draws"].cpu())
            self.speed.load_state_dict(state["speed"])
        except (KeyError, RuntimeError, InputError) as error:
            raise ConfigError(
                f"the learner's state does not fit ({error}). Expected the state of the same "
                "configuration: sizes of networks and replay must not change."
            ) from error


def settings_of(part: object) -> list[dict[str, Any]]:
    """Return an optimizer's settings, such as its learning rate; nothing for other objects."""
    if not isinstance(part, torch.optim.Optimizer):
        return []
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in part.param_groups
    ]


def take_settings(part: object, settings: list[dict[str, Any]]) -> None:
    """Set an optimizer's settings again: loading a state replaces them by the saved ones."""
    if isinstance(part, torch.optim.Optimizer):
        for group, asked in zip(part.param_groups, settings, strict=True):
            group.update(asked)
