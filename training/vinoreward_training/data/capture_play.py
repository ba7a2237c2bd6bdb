"""Pictures of any environment: random play, and which steps of an episode become pictures.

What a classifier can learn from apart from success itself must not tell the labels apart. In a
task whose goal moves, easy goals are reached more often: failures from anywhere would come from
the hard ones, and the goal's place would give the label away. So successes and most failures are
taken from the same episodes, few from each.

An episode is played twice from its seed: first without pictures, to learn at which steps it
succeeds, then up to the last chosen step, to draw the chosen ones alone. An environment that does
not repeat an episode is drawn at every step instead, onto the disk.
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
from vinoreward_training.data.dataset_files import Row, Table, make_row, rendered, save_picture

LONGEST = 10_000
"""Steps after which an episode that does not end is left."""
NEAR_STEPS = 5
"""Failures at most so many steps before a success are near misses."""
SAME_EPISODE = 0.8
"""Share of the failures that is taken from episodes with a success. The others show what episodes
that fail look like, and spoil the balance of goals by no more than their number."""
LEAD = 5
"""Successes may be ahead of the failures by this times the quota: their failures must follow."""
EARLY = 20
"""Episodes in a row that add nothing after which advice is given."""

Picture = npt.NDArray[np.uint8]


@dataclass
class Balance:
    """How many pictures of each label are wanted and kept."""

    successes: int
    failures: int
    quota: int
    """Pictures of each label from one episode, at most."""
    kept_successes: int = 0
    kept_failures: int = 0

    @property
    def complete(self) -> bool:
        """Whether both labels have what is wanted."""
        return self.kept_successes >= self.successes and self.kept_failures >= self.failures

    @property
    def missing(self) -> str:
        """The label that is waited for."""
        waits = self.kept_failures < self.failures and (
            self.lead <= 0 or self.kept_successes >= self.successes
        )
        return "failure" if waits else "success"

    @property
    def lead(self) -> int:
        """How many successes may be kept before more failures are."""
        return LEAD * self.quota - (self.kept_successes - self.kept_failures)

    def due(self, more: int = 0) -> int:
        """How many failures are owed once ``more`` successes are kept."""
        owed = self.failures * (self.kept_successes + more) // self.successes
        return max(0, min(owed, self.failures) - self.kept_failures)


def choose(truths: Sequence[bool], balance: Balance, random: np.random.Generator) -> dict[int, str]:
    """Choose the steps of an episode that become pictures.

    At most ``quota`` of each label. An episode with a success gives about as many failures as
    successes, half of them near misses; what is still owed comes from episodes without one, a few
    from each.

    Args:
        truths: success after each step.
        balance: what is wanted and kept.
        random: of this episode.

    Returns:
        Step to category: ``success``, ``near_miss``, ``same_episode`` or ``failed_episode``.
    """
    won = np.asarray(truths, dtype=np.bool_)
    wins, rest = np.flatnonzero(won), np.flatnonzero(~won)
    if not len(wins):
        few = min(len(rest), max(1, balance.quota // 2), balance.due())
        return dict.fromkeys(random.choice(rest, few, replace=False).tolist(), "failed_episode")
    # An episode that is won from the start has no failure to set beside its successes.
    wanted = min(balance.quota, max(1, len(rest)), balance.successes - balance.kept_successes)
    successes = max(0, min(len(wins), wanted, balance.lead))
    chosen = dict.fromkeys(random.choice(wins, successes, replace=False).tolist(), "success")
    due = int(random.binomial(balance.due(successes), SAME_EPISODE))
    failures = min(len(rest), balance.quota, due)
    following = np.searchsorted(wins, rest)
    follows = following < len(wins)
    gap = np.where(follows, wins[np.minimum(following, len(wins) - 1)] - rest, NEAR_STEPS + 1)
    near = random.permutation(rest[gap <= NEAR_STEPS])[: math.ceil(failures / 2)]
    others = random.permutation(np.setdiff1d(rest, near))[: failures - len(near)]
    close = set(rest[gap <= NEAR_STEPS].tolist())
    for step in (*near.tolist(), *others.tolist()):
        chosen[step] = "near_miss" if step in close else "same_episode"
    return chosen


class RandomPlay:
    """Plays an environment at random and adds the chosen pictures to a table.

    Args:
        env: renders ``rgb_array``.
        config: an episode depends on its seed and on the episode's number only; after ``patience``
            episodes in a row that add nothing it gives up.
        truth: reads it from ``info``.
        say: prints advice.
    """

    def __init__(
        self, env: Any, config: CaptureConfig, truth: Truth, say: Callable[[str], object]
    ) -> None:
        self._env, self._name, self._config = env, config.env, config
        self._truth, self._say = truth, say
        self._repeats = True
        self._info: Mapping[str, Any] = {}

    def fill(self, table: Table) -> Iterator[int]:
        """Add pictures until both labels have theirs; yield how many each episode added.

        All chosen pictures of an episode are added or none, so that a capture that was stopped
        goes on as if it never had been.

        Raises:
            DatasetError: too many episodes in a row added nothing.
            ConfigError: no truth in ``info``, or no picture from ``render()``.
        """
        config, kept = self._config, (table.count("success"), table.count("failure"))
        wins = config.frames // 2
        balance = Balance(wins, config.frames - wins, config.per_episode, *kept)
        patience, main_seed = config.patience, config.seed
        episode = max((int(row["episode"]) + 1 for row in table.rows.values()), default=0)
        barren, advised = 0, False
        while not balance.complete:
            seed = int(np.random.default_rng([main_seed, episode]).integers(2**31))
            random = np.random.default_rng([main_seed, episode, 0xC4])
            found = self._episode(table.folder, seed, balance, random)
            if found:
                pairs: list[tuple[Picture, Row]] = []
                for step, (image, category) in sorted(found.items()):
                    file, success = f"{episode:06d}-{step:05d}.png", category == "success"
                    pairs.append((image, make_row(file, success, category, episode, seed)))
                table.add(pairs)
                wins = sum(category == "success" for _, category in found.values())
                balance.kept_successes += wins
                balance.kept_failures += len(found) - wins
                yield len(found)
            barren = 0 if found else barren + 1
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
            truths = [truth for _, truth in self._play(seed)]
            chosen = choose(truths, balance, random)
            if not chosen:
                return {}
            found: dict[int, tuple[Picture, str]] = {}
            for step, truth in self._play(seed):
                if truth != truths[step]:
                    break
                if step in chosen:
                    found[step] = (rendered(self._env, self._name), chosen[step])
                if len(found) == len(chosen):
                    return found
            self._repeats = False
            self._say(
                f"{self._name} does not repeat an episode from its seed. Every step is drawn "
                "therefore, which takes longer, and the same --seed gives other pictures."
            )
            random.bit_generator.state = state
        return self._drawn_throughout(folder, seed, balance, random)

    def _drawn_throughout(
        self, folder: Path, seed: int, balance: Balance, random: np.random.Generator
    ) -> dict[int, tuple[Picture, str]]:
        """Draw every step, onto the disk, and choose when the episode is over."""
        with tempfile.TemporaryDirectory(prefix=".episode-", dir=folder) as drawn:
            truths = []
            # Not named as pictures: what a kill leaves here is no part of the dataset.
            for step, truth in self._play(seed):
                truths.append(truth)
                save_picture(Path(drawn) / f"{step}.drawn", rendered(self._env, self._name))
            return {
                step: (read_picture(Path(drawn) / f"{step}.drawn"), category)
                for step, category in choose(truths, balance, random).items()
            }

    def _play(self, seed: int) -> Iterator[tuple[int, bool]]:
        """Play one episode; yield each step's number and whether it is a success."""
        self._env.action_space.seed(seed)
        self._env.reset(seed=seed)
        for step in range(LONGEST):
            _, _, terminated, truncated, info = self._env.step(self._env.action_space.sample())
            self._info = info
            success = self._truth(info)
            if success is None:
                raise ConfigError(f"{self._name}: {self._truth.missing(info)}")
            yield step, success
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
