"""From what the monitor and the learner say to settings for actors and compressor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.evaluation import Pair
from vinoreward.actor_learner.acting.network import Refused
from vinoreward.actor_learner.config import ActorLearnerConfig
from vinoreward.actor_learner.engines.supervisor import Event
from vinoreward.actor_learner.learners.base import Learner, outputs_of
from vinoreward.actor_learner.policy_cache import PolicyCache, Pushed
from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import ConfigError
from vinoreward.monitoring.batch import MonitorBatch
from vinoreward.monitoring.monitor import Monitor
from vinoreward.monitoring.setting import FULL_BITS, CompressionSetting
from vinoreward.policies.distributions import log_prob
from vinoreward.policies.policy import Floats
from vinoreward.policies.torch_policy import from_policy

Array = npt.NDArray[Any]
MONITOR_ROWS = 512
NARROW_KEPT = 100_000
"""Versions of which it is known whether they were pushed with few bits."""
_READ = ("observations", "actions", "behaviour", "log_mu", "versions", "network")


class Controller:
    """Decides what actors and compressor are told.

    Args:
        learner: says how to explore.
        config: pull and monitor periods.
        chain: of the compressor, None for none.
        monitor: turns the compression, None leaves it as the chain was made, until an actor cannot
            act with what it gives.

    Raises:
        ConfigError: a monitor of a policy whose actions it cannot compare.
    """

    def __init__(
        self,
        learner: Learner,
        config: ActorLearnerConfig,
        chain: CompressorChain | None,
        monitor: Monitor | None,
    ) -> None:
        if monitor is not None and learner.spec.head == "tanh" and not learner.exploration.unit:
            raise ConfigError(
                "a monitor was given to a training of a tanh head without exploration. Expected a "
                "sigma above 0, the unit in which its actions differ, or no monitor."
            )
        self._learner = learner
        self._config = config
        self._monitor = monitor
        self._compressing = chain is not None
        self._wire = config.bits < FULL_BITS
        """Whether pushes lose something on their way."""
        self._parameters = {} if chain is None else chain.parameters()
        if chain is None and self._wire:
            self._parameters = {"bits": float(config.bits)}
        self._narrow: set[int] = set()
        """Of the last versions those that were pushed with few bits, kept or not."""
        self._told = 0
        self._halted = False
        self.kept = PolicyCache()

    def begin(self) -> None:
        """Let a new monitor begin with what was made: the chain's bits, the config's pull period.

        Without a chain its bits are those of the pushes.

        What a monitor's setting has left at its default is not what the user asked for.
        """
        if self._monitor is None:
            return
        made: dict[str, object] = {"pull_period": self._config.pull_period}
        if "bits" in self._parameters:
            made["bits"] = self._bits()
        if "sparsity" in self._parameters:
            made["sparsity"] = self._parameters["sparsity"]
        default, setting = CompressionSetting(), self._monitor.setting
        changes = {
            name: value
            for name, value in made.items()
            if getattr(setting, name) == getattr(default, name) != value
        }
        if changes:
            self._monitor.begin(setting.changed(changes))

    def changed(self, before: Mapping[str, int | None]) -> None:
        """Take what was changed between two runs; all else stays as the monitor has it.

        Args:
            before: the ``pull_period`` and ``bits`` that the run was configured with until now;
                None if that is not known.
        """
        wanted = {"pull_period": self._config.pull_period}
        if not self._compressing:
            wanted["bits"] = self._config.bits
        found = {
            name: value
            for name, value in wanted.items()
            if before.get(name) is not None and before[name] != value
        }
        if self._monitor is not None and found:
            self._monitor.setting = self._monitor.setting.changed(found)

    def resume(self) -> None:
        """Say that changes up to now are no news."""
        self._told = self._last_change()

    def _bits(self) -> int | None:
        bits = int(self._parameters.get("bits", FULL_BITS))
        return None if bits == FULL_BITS else bits

    def actor_settings(self, before: ActorSettings, version: int) -> ActorSettings:
        """Return the settings to go on with.

        Args:
            before: those given before.
            version: of the weights that are published next.
        """
        explore, monitor = self._learner.exploration, self._monitor
        found = dataclasses.replace(
            before,
            epsilon=round(explore.epsilon, 3),
            sigma=round(explore.sigma, 3),
            uniform=explore.uniform,
            noise=explore.noise,
            pull_period=self._config.pull_period,
        )
        if monitor is None:
            # As the chain was made: nobody turns its settings.
            return dataclasses.replace(
                found,
                bits=self._bits(),
                sparsity=self._parameters.get("sparsity", 0.0),
                enabled=before.enabled and not self._halted,
                since=version if before.enabled and self._halted else before.since,
            )
        setting = monitor.setting
        return dataclasses.replace(
            found,
            alpha=setting.alpha,
            pull_period=setting.pull_period,
            enabled=setting.enabled,
            bits=setting.bits,
            sparsity=setting.sparsity,
            since=before.since if setting.enabled == before.enabled else version,
        )

    @property
    def push_bits(self) -> int:
        """Of a weight in the next push: as configured, until a monitor says otherwise."""
        if self._monitor is None or not self._wire:
            return self._config.bits
        setting = self._monitor.setting
        if not setting.enabled:
            return FULL_BITS
        return self._config.bits if self._compressing else setting.bits or FULL_BITS

    def keep(self, pushed: Pushed, pulled: Sequence[int] = ()) -> None:
        """Remember weights that were pushed, to hold what actors made of them against.

        Args:
            pushed: just now.
            pulled: see :meth:`~vinoreward.actor_learner.engines.base.Engine.pulled`.
        """
        if not (self._compressing or self._wire):
            return
        # What actors pull matters only where they themselves make something else of it.
        self.kept.pulled(pulled[self._config.actors :] if self._compressing else pulled)
        self.kept.add(pushed)
        if pushed.bits < FULL_BITS:
            self._narrow.add(pushed.version)
        # Long after the last row of theirs; a training makes millions of versions.
        self._narrow.discard(pushed.version - NARROW_KEPT)

    @property
    def watches(self) -> bool:
        """Whether a monitor looks at what was pushed."""
        return self._monitor is not None

    def evaluated(self, pair: Pair, version: int) -> None:
        """Let the monitor look at an evaluation.

        Args:
            pair: what was played.
            version: the learner's now.
        """
        if self._monitor is None:
            return
        # The gap needs a pair; the full policy's return does not, and stages are told by it.
        returns = pair.full.returns if pair.returns is None else pair.returns
        spec, evaluated = self._learner.spec, pair.full.version
        self._monitor.observe(MonitorBatch.of_returns(spec, returns, version, evaluated))

    def watch(self, trajectories: Sequence[Trajectory], version: int) -> None:
        """Let the monitor look at rows of trajectories, the same number of each.

        Args:
            trajectories: new ones.
            version: the learner's.
        """
        if self._monitor is None:
            return
        spec, explore = self._learner.spec, self._learner.exploration
        rows = self._rows(trajectories)
        pi = self._learner.evaluate_outputs(rows["observations"])
        known = spec.head in ("logits", "tanh_gaussian")
        self._monitor.observe(
            MonitorBatch(
                spec=spec,
                pi=pi,
                mu=rows["behaviour"],
                versions=rows["versions"],
                learner_version=version,
                network=rows["network"],
                log_pi=log_prob(spec, pi, rows["actions"], explore) if known else None,
                log_mu=rows["log_mu"] if known else None,
                exploration=explore,
                source=self._sources(rows),
            )
        )

    def _rows(self, trajectories: Sequence[Trajectory]) -> dict[str, Array]:
        """Return some rows; compressed ones only of versions that are kept, if there are any."""
        each = max(1, MONITOR_ROWS // len(trajectories))
        rows = {
            name: np.concatenate(
                [
                    array.reshape(-1, *array.shape[2:])[-each:]
                    for array in (getattr(one, name) for one in trajectories)
                ]
            )
            for name in _READ
        }
        # Weights that lost something on their way are no longer the learner's.
        versions, places = np.unique(rows["versions"], return_inverse=True)
        narrow = np.array([one in self._narrow for one in versions.tolist()], dtype=bool)
        rows["network"] = np.where(narrow[places], COMPRESSED, rows["network"])
        known = (rows["network"] != COMPRESSED) | np.isin(rows["versions"], self.kept.versions)
        return {name: array[known] for name, array in rows.items()} if known.any() else rows

    def _sources(self, rows: Mapping[str, Array]) -> Floats | None:
        """Return what the full-precision network of each row's own version says, if it is known.

        Held against that, compression shows by itself: apart from how old the weights were.
        """
        compressed = rows["network"] == COMPRESSED
        needed = set(np.unique(rows["versions"][compressed]).tolist())
        kept = [self.kept.get(version) for version in needed]
        found: Floats = rows["behaviour"].astype(np.float32)
        for pushed in kept:
            if pushed is None:
                return None
            chosen = compressed & (rows["versions"] == pushed.version)
            module = from_policy(pushed.policy)
            found[chosen] = outputs_of(module, rows["observations"][chosen])
        return found

    def heard(self, refused: Sequence[tuple[int, Refused]], version: int) -> list[Event]:
        """Stop the compression for good if actors could not act with what it gives.

        A monitor does that as it does for NaN or infinity in what it is shown; without one it holds
        until training ends, and a resumed one tries again.

        Args:
            refused: (actor, weights) pairs.
            version: the learner's.

        Returns:
            The same in words.
        """
        found = []
        for actor, weights in refused:
            what = f"cannot act with the compressed weights of version {weights.version}"
            if self._monitor is not None:
                self._monitor.halt(f"actor {actor} {what}: {weights.why}", version)
            self._halted = True
            found.append(
                Event(
                    f"actor {actor}",
                    f"{what} ({weights.why}); the learner's own act instead, and compression is "
                    "switched off. Compress less, or with wider ranges",
                )
            )
        return found

    def changes(self) -> tuple[str, ...]:
        """Return what was changed since the last call, in words."""
        if self._monitor is None:
            return ()
        found = [str(each) for each in self._monitor.changes if each.update > self._told]
        self._told = self._last_change()
        return tuple(found)

    def _last_change(self) -> int:
        changes = [] if self._monitor is None else self._monitor.changes
        return max((each.update for each in changes), default=0)

    def readings(self) -> dict[str, float]:
        """Return the monitor's last readings."""
        if self._monitor is None or not self._monitor.readings:
            return {}
        return dict(self._monitor.readings[-1].values)
