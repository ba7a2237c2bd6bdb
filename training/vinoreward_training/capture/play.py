"""Images of any environment: who plays, and which steps of an episode become images.

Nothing but success itself may tell the labels apart. In a task whose goal moves, easy goals are
reached more often: failures of other episodes would show the hard goals, and the goal's place would
give the label away. So successes and most failures come from the same episodes, few from each.

An episode is played twice from its seed: first without images, to learn at which steps it
succeeds, then up to the last chosen step, to render the chosen ones alone. If an environment does
not repeat an episode, or a judge labels its images, it is played once, and each of its steps is
drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError
from vinoreward.wrappers.true_success import Truth
from vinoreward_training.capture.free_camera import wandering_camera
from vinoreward_training.capture.policies import Act
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset_files import NEAR_STEPS, Table, make_row, to_success
from vinoreward_training.data.tables import Row
from vinoreward_training.judges import Labeller
from vinoreward_training.runs.next_command import resume_capture

LONGEST = 10_000
"""Steps after which an episode is abandoned."""
LONG = 1_000
"""Steps after which advice is printed, if nothing limits the episodes."""
SAME_EPISODE = 0.8
"""Share of the failures from episodes with a success. The others show failed episodes; they are too
few to spoil the balance of goals."""
LEAD = 5
"""Successes may be ahead of the failures by this times the quota."""
MOST_NUMBERS = 32
"""Numbers of one observation, or of one entry of it, that are written down."""
FAILURES_PER_SUCCESS = 4
"""Failures per success at most, where successes are rare."""
SPREAD_NEAR = 0.5
"""Chance of a failure to be a near miss where failures show the whole way to success: so half of
the episodes that give one failure give another."""
NOISE = 0.3
"""Share of random steps in a noisy episode."""
PATIENCE = 200
"""Episodes in a row without an image after which a capture gives up."""
EARLY = 20
"""Episodes in a row without an image after which advice is printed."""

Images = npt.NDArray[np.uint8]


@dataclass
class Balance:
    """How many images of each label are wanted and kept."""

    frames: int
    """Images in all, at most half of them successes."""
    quota: int
    """Largest number of images of each label from one episode."""
    spread: bool = False
    """Whether an episode's failures show its whole way to success, also if they are few."""
    kept_successes: int = 0
    kept_failures: int = 0
    kept_failed: int = 0
    """Those of the failures that are from episodes without a success."""
    episodes: int = 0
    """Played so far."""

    @property
    def complete(self) -> bool:
        """Whether there are enough images."""
        return self.kept_successes + self.kept_failures >= self.frames

    @property
    def missing(self) -> str:
        """The label to find next."""
        return "success" if self.successes > 0 else "failure"

    @property
    def lead(self) -> int:
        """How many successes may be kept before the next failure."""
        return LEAD * self.quota - (self.kept_successes - self.kept_failures)

    @property
    def successes(self) -> int:
        """How many successes an episode may give."""
        room = min(self.frames // 2, self.frames - self.kept_failures) - self.kept_successes
        return max(0, min(self.quota, room, self.lead))

    def failures(self, more: int = 0, *, rare: bool = False) -> int:
        """How many failures there may be once ``more`` successes are kept: as many.

        Where successes are ``rare``, one for each episode, but at most ``FAILURES_PER_SUCCESS`` for
        each success.
        """
        successes, half = self.kept_successes + more, self.frames // 2
        owed = (self.frames - half) * successes // half
        if rare:
            owed = max(owed, min(FAILURES_PER_SUCCESS * successes, self.episodes))
        return max(0, min(owed, self.frames - successes) - self.kept_failures)

    @property
    def failed(self) -> int:
        """How many failures an episode without a success may give."""
        share = int((1 - SAME_EPISODE) * self.kept_failures) - self.kept_failed
        owed = max(self.failures(), min(share, self.failures(rare=True)))
        return min(owed, max(1, self.quota // 2))


def choose(truths: Sequence[int], balance: Balance, random: np.random.Generator) -> dict[int, str]:
    """Choose the steps of an episode that become images, from the success after each step.

    Never one of -1, from which a judge abstains. At most ``quota`` of each label. An episode with a
    success gives about as many failures as successes, or more where those are rare, at least half
    of them near misses (half on average if they are ``spread``); other episodes give the missing
    failures, a few each.

    Returns step to category: ``success``, ``near_miss``, ``same_episode`` or ``failed_episode``.
    """
    success = np.asarray(truths, dtype=np.int64)
    wins, rest = np.flatnonzero(success == 1), np.flatnonzero(success == 0)
    if not len(wins):
        few = min(len(rest), balance.failed)
        return dict.fromkeys(random.choice(rest, few, replace=False).tolist(), "failed_episode")
    # An episode that succeeds from the start has no failure to go with its successes.
    successes = min(len(wins), max(1, len(rest)), balance.successes)
    chosen = dict.fromkeys(random.choice(wins, successes, replace=False).tolist(), "success")
    due = int(random.binomial(balance.failures(successes, rare=True), SAME_EPISODE))
    failures = min(len(rest), balance.quota, due)
    every = np.append(wins, np.iinfo(np.int64).max)
    gap = every[np.searchsorted(every, rest)] - rest
    close = rest[gap <= NEAR_STEPS]
    share = random.binomial(failures, SPREAD_NEAR) if balance.spread else math.ceil(failures / 2)
    near = random.permutation(close)[:share]
    others = random.permutation(np.setdiff1d(rest, near))[: failures - len(near)]
    for step in (*near.tolist(), *others.tolist()):
        chosen[step] = "near_miss" if step in close else "same_episode"
    return chosen


@dataclass(frozen=True)
class Chosen:
    """A step of an episode that became an image."""

    image: Images
    category: str
    numbers: dict[str, str]
    """Of its observation, by their names in the table."""


@dataclass(frozen=True)
class Step:
    """What a step of an episode gave."""

    number: int
    success: bool
    observation: Any


class Play:
    """Plays episodes of an environment and adds the chosen images to a table.

    Each episode is played by one of ``mix``, with its numbers as chances: at ``random``, by the
    ``policy`` ``act``, or by that policy with random steps in between (``noisy``). An episode
    depends only on ``config.seed`` and its number. ``image`` takes the image of ``env`` after a
    step, given the step's observation. ``say`` prints advice. A ``judge`` tells successes in place
    of ``truth``.
    """

    def __init__(
        self,
        image: Callable[[Any], Images],
        env: Any,
        config: CaptureConfig,
        truth: Truth,
        say: Callable[[str], object],
        act: Act | None = None,
        mix: Mapping[str, float] = MappingProxyType({"random": 1.0}),
        judge: Labeller | None = None,
    ) -> None:
        self._image, self._repeats, self._judge = image, judge is None, judge
        self._env, self._name, self._config = env, config.env, config
        self._truth, self._say = truth, say
        self._act, self._mix = act, mix
        self._player = "random"
        self._info: Mapping[str, Any] = {}
        self._noted = self._warned = False
        self._truths: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self.show: Callable[[str], object] = str
        """Shows how a long episode goes on."""
        self.tried: Counter[str] = Counter()
        """Episodes played, by player."""
        self.won: Counter[str] = Counter()
        """Those of them with a success."""

    def _long(self, steps: int) -> None:
        """Show that a long episode goes on; say once what would end it."""
        self.show(f"{self.rate}, the next is at step {steps}")
        limited = self._env.spec is not None and self._env.spec.max_episode_steps
        if steps == LONG and not limited and not self._warned:
            self._warned = True
            self._say(
                f"an episode of {self._name} has lasted {LONG} steps. Nothing limits them, and "
                f"capture ends each after {LONGEST}. What helps: --env-kwargs max_episode_steps 200"
            )

    @property
    def rate(self) -> str:
        """How many of the episodes played had a success, in words."""
        won, tried = self.won.total(), self.tried.total()
        return f"{won / max(1, tried):.0%} of {tried} episodes succeed"

    def by_player(self) -> str:
        """Return the rate of each player, in words."""
        each = (f"{name} {self.won[name]}/{self.tried[name]}" for name in self._mix)
        return f"episodes with a success: {', '.join(each)}"

    def _seed(self, episode: int) -> int:
        """Choose who plays an episode; return its seed."""
        names, chances = list(self._mix), np.array(list(self._mix.values()), dtype=np.float64)
        random = np.random.default_rng([self._config.seed, episode, 0x9A])
        self._player = str(random.choice(names, p=chances / chances.sum()))
        return int(np.random.default_rng([self._config.seed, episode]).integers(2**31))

    def _begin(self, seed: int) -> tuple[Any, Iterator[Step]]:
        """Reset; return the first observation, and an iterator that makes a step each."""
        # Not the episode's own seed: with the same numbers, a random action would be the goal that
        # a reset has drawn.
        actions = int(np.random.default_rng([seed, 0xAC]).integers(2**31))
        self._env.action_space.seed(actions)
        observation, _ = self._env.reset(seed=seed)
        if not self._noted and (note := wandering_camera(self._env)):
            self._noted = True
            self._say(note)
        return observation, self._steps(seed, observation)

    def _steps(self, seed: int, observation: Any) -> Iterator[Step]:
        space = self._env.action_space
        noise = {"random": 1.0, "policy": 0.0, "noisy": NOISE}[self._player]
        random = np.random.default_rng([seed, 0x70])
        for number in range(LONGEST):
            if self._act is None or random.random() < noise:
                action = space.sample()
            else:
                action = self._act(observation)
            observation, _, terminated, truncated, info = self._env.step(action)
            self._info = info
            success = self._judge is None and self._truth(info)  # a judge sees images, later
            if success is None:
                raise ConfigError(f"{self._name}: {self._truth.missing(info)}")
            if number % 100 == 99:
                self._long(number + 1)
            yield Step(number, success, observation)
            if terminated or truncated:
                return

    def _count(self, truths: Sequence[int]) -> None:
        self._truths = np.asarray(truths) == 1
        self.tried[self._player] += 1
        self.won[self._player] += 1 in truths

    @property
    def _option(self) -> str:
        """The option that tells the truth."""
        return "--truth" if self._judge is None else "--labels-from"

    @property
    def _told(self) -> str:
        """The same as it was named or found, and what there is."""
        if self._judge is not None:
            return f"{self._option} ({self._judge})"
        keys = ", ".join(sorted(map(str, self._info)))
        return f"{self._option} {self._config.truth or self._truth.key} (info has {keys})"

    def _advice(self, missing: str) -> str:
        """Return what to try where a label is not found."""
        if missing == "failure":
            play = "more random play (--mix random 2 policy 1), or "
            return f"{'' if self._act is None else play}another {self._option} or --env"
        steps = (self._env.spec.max_episode_steps if self._env.spec is not None else None) or 0
        longer = f"--env-kwargs max_episode_steps {2 * steps or 200}"
        better = "a better --policy, or more of it in --mix"
        if self._act is None:
            better = "a policy that succeeds now and then: --policy FILE.py:FUNCTION"
        return f"{better}; longer episodes ({longer}); another {self._option} or --env"

    def fill(self, table: Table) -> Iterator[int]:
        """Add images until both labels have enough; yield after each episode how many it added.

        An episode adds all its chosen images or none, so a stopped capture resumes exactly. After
        ``PATIENCE`` episodes in a row without an image there is a DatasetError.
        """
        config = self._config
        first = self._env.reset(seed=0)[0]
        if self._act is not None:
            self._act(first)  # a policy that fails is refused before it is played for long
        kept = table.count("success"), table.count("failure")
        failed = sum(row["category"] == "failed_episode" for row in table.rows.values())
        balance = Balance(config.frames, config.per_episode, config.progress, *kept, failed)
        episode = max((int(row["episode"]) + 1 for row in table.rows.values()), default=0)
        barren, advised = 0, False
        while not balance.complete:
            balance.episodes = episode + 1
            seed = self._seed(episode)
            random = np.random.default_rng([config.seed, episode, 0xC4])
            images = self._episode(seed, balance, random)
            pairs: list[tuple[Images, Row]] = []
            for step, one in sorted(images.items()):
                file, success = f"{episode:06d}-{step:05d}.png", one.category == "success"
                row = make_row(file, success, one.category, episode, seed) | one.numbers
                row |= {"step": str(step), "steps": str(len(self._truths))}
                row["to_success"] = to_success(self._truths, step)
                row |= {} if self._act is None else {"player": self._player}
                balance.kept_failed += one.category == "failed_episode"
                balance.kept_successes += success
                balance.kept_failures += not success
                pairs.append((one.image, row))
            if pairs:
                table.add(pairs)
            yield len(pairs)
            barren = 0 if images else barren + 1
            if not advised and barren == EARLY:
                advised = True
                self._say(
                    f"{barren} episodes of {self._name} in a row gave no {balance.missing} with "
                    f"{self._told}. Capture gives up after {PATIENCE}. What helps: "
                    f"{self._advice(balance.missing)}."
                )
            if barren >= PATIENCE:
                raise DatasetError(self._given_up(table, barren, balance))
            episode += 1

    def _episode(
        self, seed: int, balance: Balance, random: np.random.Generator
    ) -> dict[int, Chosen]:
        if self._repeats:
            state = random.bit_generator.state
            truths = [step.success for step in self._begin(seed)[1]]
            chosen = choose(truths, balance, random)
            if not chosen:
                self._count(truths)
                return {}
            images: dict[int, Chosen] = {}
            for step in self._begin(seed)[1]:
                if step.success != truths[step.number]:
                    break
                if step.number in chosen:
                    image, numbers = self._image(step.observation), numbers_of(step.observation)
                    images[step.number] = Chosen(image, chosen[step.number], numbers)
                if len(images) == len(chosen):
                    self._count(truths)
                    return images
            self._repeats = False
            self._say(
                f"{self._name} does not repeat an episode from its seed. Each of its steps is "
                "drawn therefore, and the same --seed gives other images."
            )
            random.bit_generator.state = state
        return self._played_once(seed, balance, random)

    def _played_once(
        self, seed: int, balance: Balance, random: np.random.Generator
    ) -> dict[int, Chosen]:
        """Draw every step as the episode goes on, then choose."""
        truths: list[int] = []
        drawn: list[Chosen] = []
        for step in self._begin(seed)[1]:
            truths.append(step.success)
            numbers = numbers_of(step.observation)
            drawn.append(Chosen(self._image(step.observation), "", numbers))
        if self._judge is not None:
            truths = self._judge(np.stack([one.image for one in drawn])).tolist()
        self._count(truths)
        chosen = choose(truths, balance, random)
        return {number: replace(drawn[number], category=why) for number, why in chosen.items()}

    def _given_up(self, table: Table, barren: int, balance: Balance) -> str:
        kept = f"{balance.kept_successes} successes, {balance.kept_failures} failures"
        if balance.kept_successes and balance.kept_failures:
            rest = f"{kept} are kept; go on with: {resume_capture(self._config)} (or start again)"
        else:
            # Images of one label are no dataset, and would stand in the way of the next try.
            table.clear()
            rest = f"Nothing is kept in {table.folder}: start again there"
        players = "at random" if self._act is None else f"by {', '.join(self._mix)}"
        return (
            f"{barren} episodes of {self._name} played {players} gave no {balance.missing} "
            f"with {self._told}. Expected both labels now and then. {rest}. What "
            f"helps: {self._advice(balance.missing)}; images of your own in "
            f"{table.folder}/success and {table.folder}/failure."
        )


def numbers_of(observation: Any) -> dict[str, str]:
    """Return an observation's single numbers as cells of a table, if it is a few.

    They tell later whether one of them gives the label away; see
    :func:`~vinoreward_training.data.dataset.find_label_leakage`.
    """
    parts = observation if isinstance(observation, Mapping) else {"obs": observation}
    arrays = {str(name): np.asarray(part) for name, part in parts.items()}
    few = {
        name: array.ravel()
        for name, array in arrays.items()
        if array.dtype.kind in "buif" and array.ndim <= 2 and array.size <= MOST_NUMBERS
    }
    return {
        f"{name}_{index}": f"{float(value):.6g}"
        for name, values in few.items()
        for index, value in enumerate(values)
    }
