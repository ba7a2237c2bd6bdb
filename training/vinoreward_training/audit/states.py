"""The states of a search space that were scored, and the search for worse ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.rewards.interventions import Intervention, SearchSpace
from vinoreward_actors.actor_learner.acting.environments import as_config_error
from vinoreward_training.audit.checks import Floats, Images

STARTS = 4
"""States where the cross-entropy method begins."""
APART = 0.1
"""Distance between two of them, in shares of the axes."""
LEFT_OUT, FAILURE, SUCCESS = -1, 0, 1
LEAST_DEVIATION = 0.002
"""The method narrows to this standard deviation, in shares of the axes."""
_POPULATION, _ELITE = 32, 8
_FIRST_DEVIATION = 0.05
_APPLIES = "set_state(state) that returns True, False or None; mend it"
_BATCH = 64

Truth = npt.NDArray[np.int8]
Offer = tuple[tuple[Intervention, ...], tuple[SearchSpace, ...]]
"""What an environment lets an audit change, and search."""


def offered_by(env: Any) -> Offer:
    """Return the interventions and spaces that an environment (``env.unwrapped``) offers.

    ConfigError as :func:`checked_offer`.
    """
    found: list[Any] = []
    for name in ("audit_interventions", "audit_spaces"):
        found += getattr(env, name, tuple)()
    return checked_offer(found, type(env).__name__)


def checked_offer(
    found: Any, source: str
) -> tuple[tuple[Intervention, ...], tuple[SearchSpace, ...]]:
    """Return the interventions and the spaces among what ``source`` gives.

    ConfigError for anything else, and for a space that cannot be searched.
    """
    every = tuple(found) if isinstance(found, list | tuple) else (found,)
    if not all(isinstance(one, Intervention | SearchSpace) for one in every):
        raise ConfigError(
            f"{source} gives {found!r}. Expected a list of vinoreward.Intervention(name, apply) "
            "and vinoreward.SearchSpace(name, axes, set_state)."
        )
    spaces = tuple(one for one in every if isinstance(one, SearchSpace))
    for space in spaces:
        if not (space.axes and all(-np.inf < one.low < one.high < np.inf for one in space.axes)):
            raise ConfigError(
                f"the search space {space.name!r} of {source} has the axes {space.axes}. Expected "
                "at least one, each with a low below its high."
            )
    return tuple(one for one in every if isinstance(one, Intervention)), spaces


class StateScores(NamedTuple):
    """How successful images (N, H, W, 3) look: each (N,)."""

    probability: npt.NDArray[np.float32]
    score: npt.NDArray[np.floating]
    """The search looks for failures with high ones."""
    claimed: npt.NDArray[np.bool_]


class StateTable:
    """The states of a space that were scored, with truth and claims.

    Args:
        space: the space.
        take: returns the environment's image.
        score: gets images (N, H, W, 3) and their truth (N,).
    """

    def __init__(
        self,
        space: SearchSpace,
        take: Callable[[], Images],
        score: Callable[[Images, Truth], StateScores],
    ) -> None:
        self.space = space
        self.low = np.array([axis.low for axis in space.axes])
        self.span = np.array([axis.high for axis in space.axes]) - self.low
        self._take, self._score = take, score
        self.states = np.zeros((0, len(space.axes)))
        self.truth = np.zeros(0, np.int8)
        self.probability = np.zeros(0, np.float32)
        self.score = np.zeros(0)
        """Of failures; -inf of others."""
        self.claimed = np.zeros(0, np.bool_)

    def add(self, states: Floats, step: str) -> Iterator[str]:
        """Score states (N, K), clipped to the space; yield what is done next."""
        states = np.clip(states, self.low, self.low + self.span)
        for start in range(0, len(states), _BATCH):
            yield f"{self.space.name}{step}: {start} of {len(states)}"
            part = states[start : start + _BATCH]
            pairs = [self.visit(state) for state in part]
            truth = np.array([one for one, _ in pairs], np.int8)
            scores = self._score(np.stack([image for _, image in pairs]), truth)
            self.states = np.concatenate([self.states, part])
            self.truth = np.append(self.truth, truth)
            self.probability = np.append(self.probability, scores.probability)
            self.score = np.append(self.score, np.where(truth == FAILURE, scores.score, -np.inf))
            self.claimed = np.append(self.claimed, scores.claimed)

    def visit(self, state: Floats) -> tuple[int, Images]:
        """Put the environment into a state; return its truth and image."""
        with as_config_error(f"the search space {self.space.name!r} fails", _APPLIES):
            true = self.space.set_state(state.copy())
        return LEFT_OUT if true is None else int(bool(true)), self._take()

    @property
    def false(self) -> npt.NDArray[np.bool_]:
        """(N,) Where a failure is claimed."""
        return np.asarray(self.claimed & (self.truth == FAILURE))

    def sample(self, count: int, seed: int) -> Floats:
        """Return about ``count`` states of the space, of a low-discrepancy sample."""
        from scipy.stats import qmc

        random = np.random.default_rng([seed, 0x50B0])
        sampler = qmc.Sobol(len(self.space.axes), scramble=True, rng=random)
        shares = sampler.random_base2(max(1, round(math.log2(count))))
        return np.asarray(self.low + self.span * shares)

    def worst(self, count: int, start: int = 0) -> npt.NDArray[np.int64]:
        """Return the indices of at most ``count`` failures, the most successful first."""
        order = np.argsort(-self.score[start:], kind="stable")[:count] + start
        return order[np.isfinite(self.score[order])]

    def distinct(self, indices: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.int64]:
        """Return the first ``count`` of some states that are ``APART``, as indices."""
        found: list[int] = []
        for index in indices.tolist():
            away = np.abs(self.states[index] - self.states[found]) / self.span
            if (away.max(axis=1, initial=0) > APART).all():
                found.append(index)
            if len(found) == count:
                break
        return np.array(found, np.int64)


def climb(
    table: StateTable,
    random: np.random.Generator,
    states: int,
) -> Iterator[str]:
    """Score about ``states`` more, by the cross-entropy method from a few of the worst."""
    begin = table.distinct(table.worst(len(table.states)), STARTS)
    middles = (table.states[begin] - table.low) / table.span
    for number, middle in enumerate(middles):
        deviation = np.full(len(table.low), _FIRST_DEVIATION)
        for _ in range(max(1, states // (STARTS * _POPULATION))):
            sampled = np.clip(
                random.normal(middle, deviation, (_POPULATION, len(middle))), 0.0, 1.0
            )
            before = len(table.states)
            yield from table.add(table.low + table.span * sampled, f", climb {number + 1}")
            best = sampled[table.worst(_ELITE, before) - before]
            if not len(best):
                break
            middle, deviation = best.mean(axis=0), np.maximum(best.std(axis=0), LEAST_DEVIATION)
