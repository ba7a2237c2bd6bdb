"""What a learner is, and what those written here share."""

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
    """What a learner needs, for the limiter of samples per insert.

    Attributes:
        trajectories: that one update takes; 0 if any number will do, none as well (replay).
        sampled: transitions that one update samples from the replay; 0 without a replay.
        minimum: transitions before the first update.
        any_age: old experience is as good as new: nothing is dropped for its age.
    """

    trajectories: int
    sampled: int = 0
    minimum: int = 0
    any_age: bool = False


class Learner(abc.ABC):
    """Trains one policy from what actors did; one thread, the same from the same seed.

    Four methods have to be written, since nothing can be said of a learner in general: how it
    learns, what actors should run, and the two ways of a checkpoint. :class:`ModuleLearner` leaves
    one, :meth:`update`. ``vinoreward actors --algorithm`` finds the learners of other packages in
    the entry-point group ``vinoreward.learners``.

    Args:
        spec: the network that actors run.
    """

    def __init__(self, spec: PolicySpec) -> None:
        self.spec = spec
        self.updates = 0
        """Gradient steps so far."""

    @property
    def consumption(self) -> Consumption:
        """What updates need: here a trajectory each."""
        return Consumption(1)

    @abc.abstractmethod
    def update(self, trajectories: Sequence[Trajectory]) -> dict[str, float]:
        """Take trajectories in and learn.

        Args:
            trajectories: of networks of this spec, of any version. They are copied where they are
                kept: their memory may be used again afterwards.

        Returns:
            dict: metrics; empty if there was not enough data to learn from yet.

        Raises:
            InputError: trajectories of another network or of other shapes.
            OutputError: a loss or its gradient is not finite; that step was not taken.
        """

    @abc.abstractmethod
    def policy(self, version: int) -> Policy:
        """Return a copy of what actors should run now, as ``version``."""

    @abc.abstractmethod
    def state(self) -> State:
        """Return all that learning goes on from: weights, optimisers, replay, random numbers.

        Tensors may be those in use, as in torch's ``state_dict``: save them before the next update.
        """

    @abc.abstractmethod
    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from what :meth:`state` gave, to the bit.

        Raises:
            ConfigError: the state of another learner.
        """

    @property
    def ready(self) -> bool:
        """Whether an update without new trajectories would learn something."""
        return False

    @property
    def exploration(self) -> Exploration:
        """How actors should explore by now; a stochastic head explores by itself."""
        return Exploration()

    def evaluate_outputs(self, observations: npt.NDArray[np.generic]) -> Floats:
        """Return the present network's head outputs (N, K) for observations (N, *shape)."""
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
    """Seed torch inside the block only; the caller's random numbers are not touched."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


class ModuleLearner(Learner):
    """A learner of torch modules: keeps its parts, saves them, and takes guarded steps.

    A subclass writes :meth:`update`, and puts what a checkpoint must hold into ``self._parts``.

    Args:
        spec: the network that actors run.
        config: settings.
        head_gain: of the policy's head at the start.

    Raises:
        ConfigError: a network whose head it cannot train.
    """

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    heads: ClassVar[tuple[Head, ...]] = get_args(Head)
    """Of networks that it can train."""

    def __init__(self, spec: PolicySpec, config: LearnerConfig, *, head_gain: float = 0.01) -> None:
        super().__init__(spec)
        if spec.head not in self.heads:
            raise ConfigError(
                f"{type(self).__name__} was given a network with the head {spec.head!r}. Expected "
                f"{' or '.join(self.heads)}."
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
        """Return the present network's head outputs (N, K) for observations (N, *shape)."""
        return outputs_of(self.actor, observations)

    def tensor(self, array: npt.NDArray[Any]) -> Tensor:
        """Return an array on the learner's device; float64 becomes float32."""
        found = torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
        return found.float() if found.dtype == torch.float64 else found

    def normal(self, *shape: int) -> Tensor:
        """Return normally distributed numbers of the learner's own generator."""
        return torch.randn(*shape, generator=self.draws, device=self.device)

    def step(
        self, loss: Tensor, optimizer: torch.optim.Optimizer, parameters: Iterator[nn.Parameter]
    ) -> float:
        """Go one step down a loss; return the gradient's norm before it was clipped.

        Raises:
            OutputError: loss or gradient are not finite; nothing was changed.
        """
        trained = list(parameters)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(nn.utils.clip_grad_norm_(trained, self._settings.max_grad_norm))
        if not (np.isfinite(norm) and bool(torch.isfinite(loss))):
            raise OutputError(
                f"update {self.updates} has a loss of {float(loss.detach()):.4g} and a gradient of "
                f"norm {norm:.4g}. Expected finite numbers: training has diverged. The weights "
                "were left as they are: lower the learning rate or max_grad_norm, look for extreme "
                "rewards, and go on from the last checkpoint."
            )
        optimizer.step()
        return norm

    def check_finite(self, name: str, values: Tensor) -> None:
        """Raise OutputError unless all of a network's outputs are finite."""
        if not bool(torch.isfinite(values).all()):
            raise OutputError(
                f"at update {self.updates} the learner's {name} hold NaN or infinity. Expected "
                "finite numbers: training has diverged. Lower the learning rate and go on from the "
                "last checkpoint."
            )

    def state(self) -> State:
        """Return all parts' states; see :meth:`Learner.state`."""
        return {
            "kind": type(self).__name__,
            "spec": self.spec.digest(),
            "updates": self.updates,
            "draws": self.draws.get_state(),
            "speed": self.speed.state_dict(),
            "parts": {name: part.state_dict() for name, part in self._parts.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; see :meth:`Learner.load_state`."""
        found = (state.get("kind"), state.get("spec"), set(state.get("parts", ())))
        wanted = (type(self).__name__, self.spec.digest(), set(self._parts))
        if found != wanted:
            raise ConfigError(
                f"the state is that of {found[0]} with parts {sorted(found[2])}. Expected "
                f"{wanted[0]} of the same network with parts {sorted(wanted[2])}: go on with the "
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
                f"the learner's state does not fit ({error}). Expected what the same configuration "
                "saved: sizes of networks and replay must not change."
            ) from error


def settings_of(part: object) -> list[dict[str, Any]]:
    """Return what an optimizer was made with, such as its learning rate; nothing of others."""
    if not isinstance(part, torch.optim.Optimizer):
        return []
    return [
        {name: value for name, value in group.items() if name != "params"}
        for group in part.param_groups
    ]


def take_settings(part: object, settings: list[dict[str, Any]]) -> None:
    """Give an optimizer back what it was made with: a state brings what it was saved with."""
    if isinstance(part, torch.optim.Optimizer):
        for group, asked in zip(part.param_groups, settings, strict=True):
            group.update(asked)
