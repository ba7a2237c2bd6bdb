"""Derives the settings of actors and compressor from the monitor and the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.actor import Refused
from vinoreward.actor_learner.acting.evaluation import Pair
from vinoreward.actor_learner.buffers import PolicyCache, Pushed
from vinoreward.actor_learner.config import ActorLearnerConfig
from vinoreward.actor_learner.engines.supervisor import Event
from vinoreward.actor_learner.learners.base import Learner, outputs_of
from vinoreward.actor_learner.transport.link import ActorSettings
from vinoreward.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward.compression.chain import CompressorChain
from vinoreward.errors import ConfigError
from vinoreward.monitoring.batch import MonitorBatch
from vinoreward.monitoring.monitor import Monitor
from vinoreward.monitoring.strategy import FULL_BITS, CompressionSetting
from vinoreward.policies.distributions import log_prob
from vinoreward.policies.policy import Floats
from vinoreward.policies.torch_policy import from_policy

Array = npt.NDArray[Any]
MONITOR_ROWS = 512
NARROW_HISTORY = 100_000
"""Number of recent versions for which low-bit pushes are remembered."""
_READ = ("observations", "actions", "behaviour", "log_mu", "versions", "network")


class Controller:
    """Decides the settings of actors and compressor.

    Args:
        learner: defines the exploration.
        config: defines pull and monitor periods.
        chain: of the compressor, or None.
        monitor: adjusts the compression; None keeps the chain's settings until an actor cannot use
            the compressed weights.

    Raises:
        ConfigError: a monitor for a policy whose actions it cannot compare.
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
                "a monitor cannot compare actions of a tanh head without exploration. Expected a "
                "sigma above 0, the unit of action differences, or no monitor."
            )
        self._learner = learner
        self._config = config
        self.monitor = monitor
        self._compressing = chain is not None
        self._wire = config.bits < FULL_BITS
        """Whether pushes are lossy."""
        self._parameters = {} if chain is None else chain.parameters()
        if chain is None and self._wire:
            self._parameters = {"bits": float(config.bits)}
        self._narrow: set[int] = set()
        """The recent versions that were pushed with few bits."""
        self._reported = 0
        """Update of the last reported change."""
        self._halted = False
        self.cache = PolicyCache()

    def begin(self) -> None:
        """Initialise the monitor from the chain's settings and the config's pull period.

        Without a chain, bits are those of the pushes. Only changes values that the user left at
        their default.
        """
        if self.monitor is None:
            return
        made: dict[str, object] = {"pull_period": self._config.pull_period}
        if "bits" in self._parameters:
            made["bits"] = self._bits()
        if "sparsity" in self._parameters:
            made["sparsity"] = self._parameters["sparsity"]
        default, setting = CompressionSetting(), self.monitor.setting
        changes = {
            name: value
            for name, value in made.items()
            if getattr(setting, name) == getattr(default, name) != value
        }
        if changes:
            self.monitor.begin(setting.changed(changes))
        self._reported = self._last_change()

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint's state.

        Settings that the user changed between the two runs apply; others stay as the monitor set.

        Args:
            state: ``monitor``'s state or None; ``pull_period`` and ``bits`` of the previous run, if
                known.
        """
        if self.monitor is None or state["monitor"] is None:
            # A new monitor has not changed anything yet.
            self.begin()
            return
        self.monitor.load_state(state["monitor"])
        wanted = {"pull_period": self._config.pull_period}
        if not self._compressing:
            wanted["bits"] = self._config.bits
        changes = {
            name: value
            for name, value in wanted.items()
            if state.get(name) is not None and state[name] != value
        }
        if changes:
            self.monitor.setting = self.monitor.setting.changed(changes)
        self._reported = self._last_change()

    def _bits(self) -> int | None:
        bits = int(self._parameters.get("bits", FULL_BITS))
        return None if bits == FULL_BITS else bits

    def actor_settings(self, before: ActorSettings, version: int) -> ActorSettings:
        """Return the settings after ``before``; ``version`` is that of the next push."""
        explore, monitor = self._learner.exploration, self.monitor
        found = dataclasses.replace(
            before,
            epsilon=round(explore.epsilon, 3),
            sigma=round(explore.sigma, 3),
            uniform=explore.uniform,
            noise=explore.noise,
            pull_period=self._config.pull_period,
        )
        if monitor is None:
            # The chain's own settings: without a monitor nothing changes them.
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
        """Bits per weight of the next push: as configured, unless a monitor changes it."""
        if self.monitor is None or not self._wire:
            return self._config.bits
        setting = self.monitor.setting
        if not setting.enabled:
            return FULL_BITS
        return self._config.bits if self._compressing else setting.bits or FULL_BITS

    def cache_pushed(self, pushed: Pushed, pulled: Sequence[int] = ()) -> None:
        """Cache pushed weights, to compare compressed rows with them later.

        ``pulled`` is what :meth:`~vinoreward.actor_learner.engines.base.Engine.pulled` returned.
        """
        if not (self._compressing or self._wire):
            return
        # Versions that actors pull matter only if they lower the precision themselves.
        self.cache.pulled(pulled[self._config.actors :] if self._compressing else pulled)
        self.cache.add(pushed)
        if pushed.bits < FULL_BITS:
            self._narrow.add(pushed.version)
        # Long after its last row: a training makes millions of versions.
        self._narrow.discard(pushed.version - NARROW_HISTORY)

    def evaluated(self, pair: Pair, version: int) -> None:
        """Pass an evaluation to the monitor; ``version`` is the learner's current one."""
        if self.monitor is None:
            return
        # The gap needs a pair, but the full policy's return, which Staged reads, does not.
        returns = pair.full.returns if pair.returns is None else pair.returns
        spec, evaluated = self._learner.spec, pair.full.version
        self.monitor.observe(MonitorBatch.of_returns(spec, returns, version, evaluated))

    def watch(self, trajectories: Sequence[Trajectory], version: int) -> None:
        """Pass rows of new trajectories to the monitor, equally many of each."""
        if self.monitor is None:
            return
        spec, explore = self._learner.spec, self._learner.exploration
        rows = self._rows(trajectories)
        pi = self._learner.evaluate_outputs(rows["observations"])
        known = spec.head in ("logits", "tanh_gaussian")
        self.monitor.observe(
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
        """Return some rows; compressed ones only of cached versions, if there are any."""
        each = max(1, MONITOR_ROWS // len(trajectories))
        rows = {}
        for name in _READ:
            arrays = [getattr(one, name) for one in trajectories]
            parts = [array.reshape(-1, *array.shape[2:])[-each:] for array in arrays]
            rows[name] = np.concatenate(parts)
        # Low-bit pushes no longer equal the learner's weights.
        versions, places = np.unique(rows["versions"], return_inverse=True)
        narrow = np.array([one in self._narrow for one in versions.tolist()], dtype=bool)
        rows["network"] = np.where(narrow[places], COMPRESSED, rows["network"])
        known = (rows["network"] != COMPRESSED) | np.isin(rows["versions"], self.cache.versions)
        return {name: array[known] for name, array in rows.items()} if known.any() else rows

    def _sources(self, rows: Mapping[str, Array]) -> Floats | None:
        """Return the outputs of each row's own full-precision network, or None if unknown.

        Compared with them, compression shows without staleness.
        """
        compressed = rows["network"] == COMPRESSED
        outputs: Floats = rows["behaviour"].astype(np.float32)
        for version in np.unique(rows["versions"][compressed]).tolist():
            pushed = self.cache.get(version)
            if pushed is None:
                return None
            chosen = compressed & (rows["versions"] == version)
            outputs[chosen] = outputs_of(from_policy(pushed.policy), rows["observations"][chosen])
        return outputs

    def on_refused(self, refused: Sequence[tuple[int, Refused]], version: int) -> list[Event]:
        """Stop compression permanently if actors cannot use the compressed weights.

        A monitor does it as for NaN or infinity. Without a monitor compression stays off until
        training ends; a resumed training tries again.

        Args:
            refused: (actor, weights) pairs.
            version: the learner's.
        """
        events = []
        for actor, weights in refused:
            what = f"cannot use the compressed weights of version {weights.version}"
            if self.monitor is not None:
                self.monitor.halt(f"actor {actor} {what}: {weights.why}", version)
            self._halted = True
            events.append(
                Event(
                    f"actor {actor}",
                    f"{what} ({weights.why}); it uses the learner's own instead, and compression "
                    "is switched off. Compress less, or with wider ranges",
                )
            )
        return events

    def changes(self) -> tuple[str, ...]:
        """Describe the changes since the last call."""
        before, self._reported = self._reported, self._last_change()
        changes = [] if self.monitor is None else self.monitor.changes
        return tuple(str(each) for each in changes if each.update > before)

    def _last_change(self) -> int:
        changes = [] if self.monitor is None else self.monitor.changes
        return max((each.update for each in changes), default=0)

    def readings(self) -> dict[str, float]:
        """Return the monitor's last readings."""
        if self.monitor is None or not self.monitor.readings:
            return {}
        return dict(self.monitor.readings[-1].values)
