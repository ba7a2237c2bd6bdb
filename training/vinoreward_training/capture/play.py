"""Pictures of any environment: random play, and which steps of an episode become pictures.

Nothing but success itself may tell the labels apart. In a task whose goal moves, easy goals are
reached more often: failures of other episodes would show the hard goals, and the goal's place would
give the label away. So successes and most failures come from the same episodes, few from each.

An episode is played twice from its seed: first without pictures, to learn at which steps it
succeeds, then up to the last chosen step, to render the chosen ones alone. If an environment does
not repeat an episode, every step is rendered and saved to disk instead.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.picture import read_picture
from vinoreward.errors import ConfigError, DatasetError
from vinoreward.rewards.success import Truth
from vinoreward_training.configs import CaptureConfig
from vinoreward_training.data.dataset_files import Row, Table, make_row, save_picture

LONGEST = 10_000
"""Steps after which an episode is abandoned."""
NEAR_STEPS = 5
"""Failures at most so many steps before a success are near misses."""
SAME_EPISODE = 0.8
"""Share of the failures from episodes with a success. The others show failed episodes; they are too
few to spoil the balance of goals."""
LEAD = 5
"""Successes may be ahead of the failures by this times the quota."""
EARLY = 20
"""Episodes in a row without a picture after which advice is printed."""

Picture = npt.NDArray[np.uint8]


@dataclass
class Balance:
    """How many pictures of each label are wanted and kept."""

    successes: int
    failures: int
    quota: int
    """Largest number of pictures of each label from one episode."""
    kept_successes: int = 0
    kept_failures: int = 0

    @property
    def complete(self) -> bool:
        """Whether both labels have enough pictures."""
        return self.kept_successes >= self.successes and self.kept_failures >= self.failures

    @property
    def missing(self) -> str:
        """The label to find next."""
        failure = self.kept_failures < self.failures and (
            self.lead <= 0 or self.kept_successes >= self.successes
        )
        return "failure" if failure else "success"

    @property
    def lead(self) -> int:
        """How many successes may be kept before the next failure."""
        return LEAD * self.quota - (self.kept_successes - self.kept_failures)

    def due(self, more: int = 0) -> int:
        """How many failures are owed once ``more`` successes are kept."""
        owed = self.failures * (self.kept_successes + more) // self.successes
        return max(0, min(owed, self.failures) - self.kept_failures)


def choose(truths: Sequence[bool], balance: Balance, random: np.random.Generator) -> dict[int, str]:
    """Choose the steps of an episode that become pictures, from the success after each step.

    At most ``quota`` of each label. An episode with a success gives about as many failures as
    successes, half of them near misses; other episodes give the missing failures, a few each.
    Returns step to category: ``success``, ``near_miss``, ``same_episode`` or ``failed_episode``.
    """
    success = np.asarray(truths, dtype=np.bool_)
    wins, rest = np.flatnonzero(success), np.flatnonzero(~success)
    if not len(wins):
        few = min(len(rest), max(1, balance.quota // 2), balance.due())
        return dict.fromkeys(random.choice(rest, few, replace=False).tolist(), "failed_episode")
    # An episode that succeeds from the start has no failure to set beside its successes.
    wanted = min(balance.quota, max(1, len(rest)), balance.successes - balance.kept_successes)
    successes = max(0, min(len(wins), wanted, balance.lead))
    chosen = dict.fromkeys(random.choice(wins, successes, replace=False).tolist(), "success")
    due = int(random.binomial(balance.due(successes), SAME_EPISODE))
    failures = min(len(rest), balance.quota, due)
    following = np.searchsorted(wins, rest)
    follows = following < len(wins)
    gap = np.where(follows, wins[np.minimum(following, len(wins) - 1)] - rest, NEAR_STEPS + 1)
    close = rest[gap <= NEAR_STEPS]
    near = random.permutation(close)[: math.ceil(failures / 2)]
    others = random.permutation(np.setdiff1d(rest, near))[: failures - len(near)]
    for step in (*near.tolist(), *others.tolist()):
        chosen[step] = "near_miss" if step in close else "same_episode"
    return chosen


class RandomPlay:
    """Plays an environment at random and adds the chosen pictures to a table.

    ``picture`` takes the picture of ``env`` after a step, given the step's observation. An episode
    depends only on ``config.seed`` and its number. ``say`` prints advice.
    """

    def __init__(
        self,
        env: Any,
        picture: Callable[[Any], Picture],
        config: CaptureConfig,
        truth: Truth,
        say: Callable[[str], object],
    ) -> None:
        self._env, self._name, self._config = env, config.env, config
        self._picture = picture
        self._truth, self._say = truth, say
        self._repeats = True
        self._info: Mapping[str, Any] = {}

    def fill(self, table: Table) -> Iterator[int]:
        """Add pictures until both labels have enough; yield how many each episode added.

        An episode adds all its chosen pictures or none, so a stopped capture resumes exactly. After
        ``patience`` episodes in a row without a picture there is a DatasetError.
        """
        config, patience = self._config, self._config.patience
        # An environment without pictures is refused before it is played for long.
        self._picture(self._env.reset(seed=0)[0])
        wins = config.frames // 2
        kept = table.count("success"), table.count("failure")
        balance = Balance(wins, config.frames - wins, config.per_episode, *kept)
        episode = max((int(row["episode"]) + 1 for row in table.rows.values()), default=0)
        barren, advised = 0, False
        while not balance.complete:
            seed = int(np.random.default_rng([config.seed, episode]).integers(2**31))
            random = np.random.default_rng([config.seed, episode, 0xC4])
            pictures = self._episode(table.folder, seed, balance, random)
            if pictures:
                pairs: list[tuple[Picture, Row]] = []
                for step, (image, category) in sorted(pictures.items()):
                    file, success = f"{episode:06d}-{step:05d}.png", category == "success"
                    pairs.append((image, make_row(file, success, category, episode, seed)))
                table.add(pairs)
                wins = sum(category == "success" for _, category in pictures.values())
                balance.kept_successes += wins
                balance.kept_failures += len(pictures) - wins
                yield len(pictures)
            barren = 0 if pictures else barren + 1
            if not advised and barren and barren == min(EARLY, patience - 1):
                advised = True
                self._say(
                    f"{barren} episodes of {self._name} in a row gave no {balance.missing} with "
                    f"--truth-key {self._truth.key} (info has "
                    f"{', '.join(sorted(map(str, self._info)))}). Capture gives up after "
                    f"{patience}; to try another key or environment, stop it with Ctrl-C."
                )
            if barren >= patience:
                raise DatasetError(self._given_up(table, barren, balance))
            episode += 1

    def _episode(
        self, folder: Path, seed: int, balance: Balance, random: np.random.Generator
    ) -> dict[int, tuple[Picture, str]]:
        if self._repeats:
            state = random.bit_generator.state
            truths = [truth for _, truth, _ in self._play(seed)]
            chosen = choose(truths, balance, random)
            if not chosen:
                return {}
            pictures: dict[int, tuple[Picture, str]] = {}
            for step, truth, observation in self._play(seed):
                if truth != truths[step]:
                    break
                if step in chosen:
                    pictures[step] = (self._picture(observation), chosen[step])
                if len(pictures) == len(chosen):
                    return pictures
            self._repeats = False
            self._say(
                f"{self._name} does not repeat an episode from its seed. Every step is drawn "
                "therefore, which takes longer, and the same --seed gives other pictures."
            )
            random.bit_generator.state = state
        # Render every step to disk, and choose when the episode is over.
        with tempfile.TemporaryDirectory(prefix=".episode-", dir=folder) as drawn:
            truths = []
            # Not named as pictures: after a kill they must not become part of the dataset.
            for step, truth, observation in self._play(seed):
                truths.append(truth)
                save_picture(Path(drawn) / f"{step}.drawn", self._picture(observation))
            return {
                step: (read_picture(Path(drawn) / f"{step}.drawn"), category)
                for step, category in choose(truths, balance, random).items()
            }

    def _play(self, seed: int) -> Iterator[tuple[int, bool, Any]]:
        """Play one episode; yield each step's number, whether it is a success, and what is seen."""
        self._env.action_space.seed(seed)
        self._env.reset(seed=seed)
        for step in range(LONGEST):
            action = self._env.action_space.sample()
            observation, _, terminated, truncated, info = self._env.step(action)
            self._info = info
            success = self._truth(info)
            if success is None:
                raise ConfigError(f"{self._name}: {self._truth.missing(info)}")
            yield step, success, observation
            if terminated or truncated:
                return

    def _given_up(self, table: Table, barren: int, balance: Balance) -> str:
        kept = f"{balance.kept_successes} successes, {balance.kept_failures} failures"
        if balance.kept_successes and balance.kept_failures:
            rest = f"{kept} are kept: continue with --resume and a larger --patience"
        else:
            # Pictures of one label are no dataset, and would stand in the way of the next try.
            table.clear()
            rest = f"Nothing is kept in {table.folder}: try another --env or --truth-key there"
        return (
            f"{barren} episodes of {self._name} played at random gave no {balance.missing} "
            f"(--truth-key {self._truth.key}). Expected both labels now and then. {rest}; use an "
            "environment that random play solves sometimes; wait longer with --patience; or put "
            f"pictures of your own into {table.folder}/success and {table.folder}/failure."
        )
