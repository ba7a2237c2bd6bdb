"""The compressor: pull the newest weights, compress, check, publish. Training never waits for it.

If it is late, actors keep their weights; if it dies, they use the learner's own.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError, ModelCorruptError, OutputError, VinorewardError
from vinoreward.files import atomic_path, open_plain, read_npz, read_plain, reason_of
from vinoreward_actors.actor_learner.acting.config import EngineConfig
from vinoreward_actors.actor_learner.transport.link import NONE, Link
from vinoreward_actors.actor_learner.transport.trajectory import FULL_PRECISION
from vinoreward_actors.compression.chain import (
    CompressionContext,
    CompressorChain,
    Run,
    check_policy,
)
from vinoreward_actors.monitoring.strategy import FULL_BITS
from vinoreward_actors.policies.policy import Policy

STATE_FILE = "compressor.npz"
"""State of a compressor between two runs: plain arrays, in the checkpoint's folder."""
MAX_BYTES = 2 << 30
QUALITY_ROWS = 64
"""Observations for comparing a policy with its teacher: few, as actors wait for the result, and
others at each push, so that rare ones are included at times."""
TEACHING = 0.5
"""Maximum fraction of the time between the learner's pushes for distillation."""
MISSED = 4
"""Maximum number of pushes to count in that time: a late compressor must not distill for longer and
fall further behind."""


class Pace:
    """Time limit for distillation, from the rate of the learner's pushes."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._intervals: deque[float] = deque(maxlen=5)

    def seconds(self, version: int, now: float) -> float:
        """Return the seconds for distillation of a version just pulled; 0 at the first push."""
        last, self._last = self._last, (version, now)
        if last is None or version <= last[0]:
            return 0.0
        pushes = version - last[0]
        self._intervals.append((now - last[1]) / pushes)
        # The median, because the learner does not push for a long time while it saves.
        return TEACHING * statistics.median(self._intervals) * min(pushes, MISSED)


class Compressor:
    """Compresses the newest version by a chain, which it changes, when it is called.

    ``outputs`` computes compressed policies on their
    backends, for the check before publication; None checks in NumPy.
    """

    def __init__(
        self,
        config: EngineConfig,
        chain: CompressorChain,
        link: Link,
        outputs: Run | None = None,
    ) -> None:
        self._config = config
        self._link = link
        self._outputs = outputs
        self._chain = chain
        self._pace = Pace()
        self._have = NONE
        self._pushes = 0
        self._saved = 0
        if config.resume and config.folder is not None and (config.folder / STATE_FILE).is_file():
            self._pushes, state = read_state(config.folder / STATE_FILE)
            self._chain.load_state(state)

    def step(self) -> bool:
        """Compress the newest version, if it is new; save the state, if the learner asks for it.

        Returns:
            bool: whether there is a compressed policy of it.
        """
        self.save_if_asked()
        weights = self._link.pull(FULL_PRECISION, self._have)
        if weights is None:
            return False
        self._have = weights.version
        self._link.report("pulled", self._have)
        pushed = weights.policy()
        parameters = pushed.float_parameters()
        teacher = pushed.replace(parameters=parameters, backend=self._config.run.compressed_backend)
        with self._reporting(self._have):
            return self._push(teacher)
        return False

    @contextlib.contextmanager
    def _reporting(self, version: int) -> Iterator[None]:
        """Report errors to the user and continue; actors use other weights once theirs are old."""
        try:
            yield
        except VinorewardError as error:
            self._link.report("compressor", {"version": version, "error": str(error)})

    def _push(self, teacher: Policy) -> bool:
        settings, observations = self._link.settings, self._link.observations
        if not settings.enabled or observations is None:
            return False
        start, cpu = time.perf_counter(), time.process_time()
        seconds = self._pace.seconds(teacher.version, start)
        parameters = self._chain.parameters()
        context = CompressionContext(
            teacher=teacher,
            observations=observations,
            push=self._pushes,
            seed=self._config.run.seed,
            seconds=None if self._config.run.engine == "inline" else seconds,
            batch=self._config.run.environments,
            bits=float(settings.bits or FULL_BITS) if "bits" in parameters else None,
            sparsity=settings.sparsity if "sparsity" in parameters else None,
        )
        policy = self._chain.compress(teacher, context)
        self._pushes += 1
        quality = check_policy(policy, teacher, context.some(QUALITY_ROWS), run=self._outputs)
        if not quality.finite:
            raise OutputError(
                f"the compressed policy of version {teacher.version} gives NaN or infinity. "
                "Expected finite numbers; actors do not get it. Compress less, or with wider "
                "ranges."
            )
        self._link.publish(policy)
        self._link.report(
            "compressor",
            {
                "version": teacher.version,
                "seconds": time.perf_counter() - start,
                "cpu_seconds": time.process_time() - cpu,
                "quality": asdict(quality),
            },
        )
        return True

    def save_if_asked(self) -> None:
        """Write the state if the learner has asked for it since the last time."""
        asked = self._link.settings.save
        if asked <= self._saved or self._config.folder is None:
            return
        self._saved = asked
        arrays: dict[str, Any] = {name: np.asarray(v) for name, v in self._chain.state().items()}
        arrays["pushes"] = np.asarray(self._pushes)
        with (
            self._reporting(NONE),
            atomic_path(self._config.folder / STATE_FILE) as part,
            open_plain(part, "wb") as stream,
        ):
            np.savez(stream, **arrays)


def read_state(path: Path) -> tuple[int, dict[str, Any]]:
    """Return the number of pushes and the chain's state from a compressor's file."""
    try:
        data = read_plain(path, MAX_BYTES)
        state = read_npz(data, len(data))
        pushes = state.pop("pushes", None)
        if pushes is None or pushes.shape != () or pushes.dtype.kind != "i" or pushes < 0:
            raise ModelCorruptError("no count of pushes")
    except (OSError, ModelCorruptError) as error:
        raise _damaged(path, error) from error
    chain = {name: value.item() if value.ndim == 0 else value for name, value in state.items()}
    return int(pushes), chain


def check_state(path: Path, chain: CompressorChain) -> None:
    """Raise unless a chain can load a compressor's file; the chain does not change."""
    _, state = read_state(path)
    try:
        copy.deepcopy(chain).load_state(state)
    except (TypeError, ValueError, LookupError) as error:
        if not isinstance(error, ConfigError):
            raise _damaged(path, error) from error
        raise ConfigError(
            f"{path} is of another chain: {error} Or delete the file: the compressor then measures "
            "and trains its student again."
        ) from error


def _damaged(path: Path, error: Exception) -> ModelCorruptError:
    return ModelCorruptError(
        f"{path} is damaged: {reason_of(error)}. Expected the state of a compressor; restore it "
        "from a copy, or delete it: the compressor then measures again."
    )
