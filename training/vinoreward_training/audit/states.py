"""The states of a search space that were looked at, and the way up to worse ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward.rewards.interventions import Intervention, SearchSpace
from vinoreward_actors.actor_learner.acting.environments import as_config_error

STARTS = 4
"""Places where the cross-entropy method begins."""
APART = 0.1
"""Distance between two starts, in shares of the axes."""
LEFT_OUT, FAILURE, SUCCESS = -1, 0, 1
LEAST_SPREAD = 0.002
"""The method narrows to this standard deviation, in shares of the axes."""
_POPULATION, _ELITE = 32, 8
_FIRST_SPREAD = 0.05
_APPLIES = "set_state(state) that returns True, False or None; mend it"
_BATCH = 64

States = npt.NDArray[np.float64]
Images = npt.NDArray[np.uint8]
Truth = npt.NDArray[np.int8]


def offered_by(env: Any) -> tuple[tuple[Intervention, ...], tuple[SearchSpace, ...]]:
    """Return the interventions and spaces that an environment (``env.unwrapped``) offers.

    ConfigError as :func:`apart`.
    """
    found: list[Any] = []
    for name in ("audit_interventions", "audit_spaces"):
        found += getattr(env, name, tuple)()
    return apart(found, type(env).__name__)


def apart(found: Any, source: str) -> tuple[tuple[Intervention, ...], tuple[SearchSpace, ...]]:
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
    """What is thought of some images (N,)."""

    probability: npt.NDArray[np.float32]
    """Of success."""
    score: npt.NDArray[np.float64]
    """The more successful they look, the higher."""
    paid: npt.NDArray[np.bool_]
    """Whether they are claimed."""


class Looked:
    """The states that were looked at, with truth and claims."""

    def __init__(
        self,
        space: SearchSpace,
        image: Callable[[], Images],
        judge: Callable[[Images, Truth], StateScores],
    ) -> None:
        """``judge`` gets images (N, H, W, 3), and for each whether it is a ``FAILURE``."""
        self.space = space
        self.low = np.array([axis.low for axis in space.axes])
        self.span = np.array([axis.high for axis in space.axes]) - self.low
        self._image, self._judge = image, judge
        self.states = np.zeros((0, len(space.axes)))
        self.truth = np.zeros(0, np.int8)
        self.probability = np.zeros(0, np.float32)
        self.score = np.zeros(0)
        """Of failures; -inf of others."""
        self.paid = np.zeros(0, np.bool_)

    def at(self, states: States, what: str) -> Iterator[str]:
        """Look at states (N, K), those outside the space at its edge; yield what is done next."""
        states = np.clip(states, self.low, self.low + self.span)
        for start in range(0, len(states), _BATCH):
            yield f"{what}{start} of {len(states)}"
            part = states[start : start + _BATCH]
            pairs = [self.look_at(state) for state in part]
            truth = np.array([one for one, _ in pairs], np.int8)
            judged = self._judge(np.stack([image for _, image in pairs]), truth)
            self.states = np.concatenate([self.states, part])
            self.truth = np.append(self.truth, truth)
            self.probability = np.append(self.probability, judged.probability)
            self.score = np.append(self.score, np.where(truth == FAILURE, judged.score, -np.inf))
            self.paid = np.append(self.paid, judged.paid)

    def spread(self, count: int, seed: int) -> States:
        """Return about ``count`` states of the space, of a low-discrepancy sample."""
        from scipy.stats import qmc

        random = np.random.default_rng([seed, 0x50B0])
        sampler = qmc.Sobol(len(self.space.axes), scramble=True, rng=random)
        shares = sampler.random_base2(max(1, round(math.log2(count))))
        return np.asarray(self.low + self.span * shares)

    def look_at(self, state: States) -> tuple[int, Images]:
        """Return the truth of a state, and its image."""
        with as_config_error(f"the search space {self.space.name!r} fails", _APPLIES):
            true = self.space.set_state(state.copy())
        return LEFT_OUT if true is None else int(bool(true)), self._image()

    def worst(self, count: int, start: int = 0) -> npt.NDArray[np.int64]:
        """Return the indices of at most ``count`` failures, the most successful first."""
        order = np.argsort(-self.score[start:], kind="stable")[:count] + start
        return order[np.isfinite(self.score[order])]


def climb(
    looked: Looked,
    random: np.random.Generator,
    states: int,
    *,
    starts: int = STARTS,
    least_spread: float = LEAST_SPREAD,
) -> Iterator[str]:
    """Look at about ``states`` more, by the cross-entropy method from a few of the worst."""
    low, span = looked.low, looked.span
    found: list[States] = []
    for index in looked.worst(len(looked.states)):
        state = (looked.states[index] - low) / span
        if all(np.abs(state - other).max() > APART for other in found):
            found.append(state)
        if len(found) == starts:
            break
    for number, middle in enumerate(found):
        spread = np.full(len(low), _FIRST_SPREAD)
        for _ in range(max(1, states // (starts * _POPULATION))):
            drawn = np.clip(random.normal(middle, spread, (_POPULATION, len(low))), 0.0, 1.0)
            before = len(looked.states)
            yield from looked.at(low + span * drawn, f"{looked.space.name}, climb {number + 1}: ")
            best = drawn[looked.worst(_ELITE, before) - before]
            if not len(best):
                break
            middle, spread = best.mean(axis=0), np.maximum(best.std(axis=0), least_spread)
