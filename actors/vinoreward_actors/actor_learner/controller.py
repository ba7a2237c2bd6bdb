"""Derives the settings of actors and compressor from the monitor and the learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.acting.actor import Refused
from vinoreward_actors.actor_learner.acting.evaluation import Pair
from vinoreward_actors.actor_learner.config import ActorLearnerConfig
from vinoreward_actors.actor_learner.engines.base import Event
from vinoreward_actors.actor_learner.learners.base import Learner, outputs_of
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, Trajectory
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.monitoring.batch import MonitorBatch
from vinoreward_actors.monitoring.monitor import Monitor
from vinoreward_actors.monitoring.strategy import FULL_BITS, CompressionSetting
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import Floats, Policy
from vinoreward_actors.policies.torch_policy import from_policy

Array = npt.NDArray[Any]
MONITOR_ROWS = 512
MAX_VERSIONS = 1024
MAX_BYTES = 256 << 20
MIN_VERSIONS = 5
"""Limits of the cache; MIN_VERSIONS overrides MAX_BYTES."""
_READ = ("observations", "actions", "behaviour", "log_mu", "versions", "network")


@dataclass(frozen=True)
class Pushed:
    """Pushed weights, in full precision."""

    policy: Policy
    steps: int = 0  # of environments, at the push
    seconds: float = 0.0  # of training, at the push

    @property
    def version(self) -> int:
        """The learner's."""
        return self.policy.version


class PolicyCache:
    """The versions that the compressor has pulled, and newer ones that may still be pulled.

    Versions that a slow compressor skips never have rows, so they are evicted first.
    """

    def __init__(self) -> None:
        self._new: dict[int, Pushed] = {}
        self._used: dict[int, Pushed] = {}

    def add(self, pushed: Pushed) -> None:
        """Cache weights that were just pushed."""
        self._new[pushed.version] = pushed
        size = sum(value.nbytes for value in pushed.policy.float_parameters().values())
        most = max(MIN_VERSIONS, min(MAX_VERSIONS, MAX_BYTES // max(1, size)))
        while len(self._new) + len(self._used) > most:
            drop = self._new if len(self._new) > most // 2 else self._used
            del drop[next(iter(drop))]

    def pulled(self, versions: Iterable[int]) -> None:
        """Mark versions as pulled."""
        for version in versions:
            if version in self._new:
                self._used[version] = self._new.pop(version)

    def get(self, version: int) -> Pushed | None:
        """Return a version, or None if it is not cached."""
        return self._new.get(version) or self._used.get(version)

    @property
    def versions(self) -> list[int]:
        """The cached versions."""
        return [*self._used, *self._new]


class Controller:
    """Decides the settings of actors and compressor.

    Without a monitor the chain's settings stay, until an actor cannot use the compressed weights.
    """

    def __init__(
        self,
        learner: Learner,
        config: ActorLearnerConfig,
        chain: CompressorChain | None,
        monitor: Monitor | None,
    ) -> None:
        if monitor is not None and learner.spec.head == "tanh" and not learner.exploration.sigma:
            raise ConfigError(
                "a monitor cannot compare actions of a tanh head without exploration. Expected a "
                "sigma above 0, the unit of action differences, or no monitor."
            )
        self._learner = learner
        self._config = config
        self.monitor = monitor
        self._compressing = chain is not None
        self._parameters = {} if chain is None else chain.parameters()
        self._reported = 0
        """Update of the last reported change."""
        self._halted = False
        self.cache = PolicyCache()

    def begin(self) -> None:
        """Initialise the monitor from the chain's settings.

        Values that the user has set stay.
        """
        if self.monitor is None:
            return
        initial: dict[str, object] = {}
        if "bits" in self._parameters:
            initial["bits"] = self._bits()
        if "sparsity" in self._parameters:
            initial["sparsity"] = self._parameters["sparsity"]
        default, setting = CompressionSetting(), self.monitor.setting
        changes = {
            name: value
            for name, value in initial.items()
            if getattr(setting, name) == getattr(default, name) != value
        }
        if changes:
            self.monitor.begin(setting.changed(changes))
        self.changes()  # are not reported

    def load(self, state: Mapping[str, Any]) -> None:
        """Resume from a checkpoint's state."""
        if self.monitor is None or state["monitor"] is None:
            self.begin()
            return
        self.monitor.load_state(state["monitor"])
        self.changes()

    def _bits(self) -> int | None:
        bits = int(self._parameters.get("bits", FULL_BITS))
        return None if bits == FULL_BITS else bits

    def actor_settings(self, before: ActorSettings) -> ActorSettings:
        """Return the settings after ``before``."""
        explore, monitor = self._learner.exploration, self.monitor
        settings = dataclasses.replace(
            before,
            epsilon=round(explore.epsilon, 3),
            sigma=round(explore.sigma, 3),
            pull_period=self._config.pull_period,
        )
        if monitor is None:
            return dataclasses.replace(
                settings,
                bits=self._bits(),
                sparsity=self._parameters.get("sparsity", 0.0),
                enabled=before.enabled and not self._halted,
            )
        setting = monitor.setting
        return dataclasses.replace(
            settings,
            alpha=setting.alpha,
            enabled=setting.enabled,
            bits=setting.bits,
            sparsity=setting.sparsity,
        )

    def cache_pushed(self, pushed: Pushed) -> None:
        """Cache pushed weights for :meth:`watch`."""
        if self._compressing:
            self.cache.add(pushed)

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
        known = (rows["network"] != COMPRESSED) | np.isin(rows["versions"], self.cache.versions)
        return {name: array[known] for name, array in rows.items()} if known.any() else rows

    def _sources(self, rows: Mapping[str, Array]) -> Floats | None:
        """Return the outputs of each row's own full-precision network, or None if unknown.

        They show the effect of compression without that of staleness.
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
        """Stop compression if actors cannot use the weights, given as (actor, weights) pairs.

        A monitor does it as for NaN or infinity. Without one, a resumed training tries again.
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
        changes = [] if self.monitor is None else self.monitor.changes
        before = self._reported
        self._reported = max((each.update for each in changes), default=0)
        return tuple(str(each) for each in changes if each.update > before)

    def readings(self) -> dict[str, float]:
        """Return the monitor's last readings."""
        if self.monitor is None or not self.monitor.readings:
            return {}
        return dict(self.monitor.readings[-1].values)
