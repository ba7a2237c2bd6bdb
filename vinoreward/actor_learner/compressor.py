"""The compressor's loop: wait for newer weights, compress, look, publish. Beside training, never in
its way: if it is late, actors go on with what they have, and if it dies, with the learner's own.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.actor_learner.transport.actor_settings import ActorSettings
from vinoreward.actor_learner.transport.link import NONE, CompressorLink
from vinoreward.actor_learner.transport.trajectory import FULL_PRECISION
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.context import CompressionContext
from vinoreward.compression.quality import Run, check_policy
from vinoreward.errors import ConfigError, ModelCorruptError, OutputError, VinorewardError
from vinoreward.files import atomic_path, open_plain, read_plain
from vinoreward.policies.policy import Policy
from vinoreward.saved_arrays import read_npz, reason_of

STATE_FILE = "compressor.npz"
"""State of a compressor between two runs: plain arrays, in the checkpoint's folder."""
MAX_BYTES = 2 << 30
FULL_BITS = 32
QUALITY_ROWS = 64
"""Observations on which a policy is compared with its teacher: few, since actors wait for the next
one, but others at each push, so that a rare one has its turn."""
TEACHING = 0.5
"""Part of the time between the learner's pushes in which a chain may teach."""
MISSED = 4
"""Pushes that this time counts at most: a compressor that is late does not get later by teaching
longer."""


@dataclass(frozen=True)
class CompressorConfig:
    """What the compressor is told once.

    Attributes:
        chain: the stages.
        backend: what actors run where the chain does not say (``Compile`` does).
        seed: of the run.
        folder: where its state is written when asked, and read from on resuming; None for nowhere.
        resume: read the state first.
        counted: let stages do the number of updates that they were told, which repeats to the bit;
            otherwise they have as much time as the learner's pace leaves.
    """

    chain: CompressorChain
    backend: str = "numpy"
    seed: int = 0
    folder: Path | None = None
    resume: bool = False
    counted: bool = False


class Pace:
    """How long a chain may teach at a push, from how fast the learner pushes."""

    def __init__(self) -> None:
        self._last: tuple[int, float] | None = None
        self._intervals: deque[float] = deque(maxlen=5)

    def seconds(self, version: int, now: float) -> float:
        """Return the wall time for teaching; 0 at the first push.

        Args:
            version: of the weights that were just pulled.
            now: in seconds.
        """
        last, self._last = self._last, (version, now)
        if last is None or version <= last[0]:
            return 0.0
        pushes = version - last[0]
        self._intervals.append((now - last[1]) / pushes)
        # The median: while the learner saves it pushes nothing for a long time.
        return TEACHING * statistics.median(self._intervals) * min(pushes, MISSED)


def copied(policy: Policy) -> Policy:
    """Return a policy with arrays of its own, for one that lies in leased memory."""
    return policy.replace(parameters={k: np.array(v) for k, v in policy.float_parameters().items()})


class Compressor:
    """Compresses every version it gets to, newest first.

    Args:
        config: what to do.
        link: to the learner.
        batch: observations of one call of the actors' backends.
        outputs: runs compressed policies on the actors' backends for the check before they are
            published; None checks in NumPy.
    """

    def __init__(
        self,
        config: CompressorConfig,
        link: CompressorLink,
        batch: int = 1,
        outputs: Run | None = None,
    ) -> None:
        self._config = config
        self._link = link
        self._batch = batch
        self._outputs = outputs
        self._chain = config.chain
        self._pace = Pace()
        self._pushes = 0
        self._saved = 0
        if config.resume and config.folder is not None and (config.folder / STATE_FILE).is_file():
            self._load(config.folder / STATE_FILE)

    def run(self) -> None:
        """Compress until the learner says stop."""
        have = NONE
        while not self._link.stopped:
            self._save_if_asked()
            weights = self._link.pull(FULL_PRECISION, have, wait=True)
            if weights is None:
                continue
            # A copy: what follows takes long, and the learner's next weights need the room.
            teacher = copied(weights.policy()).replace(backend=self._config.backend)
            have = teacher.version
            with self._told(have):
                self._push(teacher, self._link.settings())
        self._save_if_asked()

    @contextlib.contextmanager
    def _told(self, version: int) -> Iterator[None]:
        """Tell the user of an error and go on.

        Actors keep what they have, and take the learner's own weights when that is too old.
        """
        try:
            yield
        except VinorewardError as error:
            self._link.report("compressor", {"version": version, "error": str(error)})

    def _push(self, teacher: Policy, settings: ActorSettings) -> None:
        observations = self._link.observations()
        if not settings.enabled_at(teacher.version) or observations is None:
            return
        start, cpu = time.perf_counter(), time.process_time()
        seconds = self._pace.seconds(teacher.version, start)
        parameters = self._chain.parameters()
        context = CompressionContext(
            teacher=teacher,
            observations=observations,
            push=self._pushes,
            seed=self._config.seed,
            seconds=None if self._config.counted else seconds,
            batch=self._batch,
            bits=float(settings.bits or FULL_BITS) if "bits" in parameters else None,
            sparsity=settings.sparsity if "sparsity" in parameters else None,
        )
        policy = self._chain.compress(teacher, context)
        self._pushes += 1
        quality = check_policy(policy, teacher, context.some(QUALITY_ROWS), run=self._outputs)
        if not quality.finite:
            raise OutputError(
                f"the compressed policy of version {teacher.version} gives NaN or infinity. "
                "Expected finite numbers; it was not handed out. Compress less, or with wider "
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

    def _save_if_asked(self) -> None:
        asked = self._link.settings().save
        if asked <= self._saved or self._config.folder is None:
            return
        self._saved = asked
        arrays: dict[str, Any] = {name: np.asarray(v) for name, v in self._chain.state().items()}
        arrays["pushes"] = np.asarray(self._pushes)
        with (
            self._told(NONE),
            atomic_path(self._config.folder / STATE_FILE) as part,
            open_plain(part, "wb") as stream,
        ):
            np.savez(stream, **arrays)

    def _load(self, path: Path) -> None:
        state = read_state(path)
        self._pushes = int(state["pushes"])
        self._chain.load_state(chain_state(state))


def read_state(path: Path) -> dict[str, Any]:
    """Return what a compressor wrote there.

    Raises:
        ModelCorruptError: the file is damaged.
    """
    try:
        data = read_plain(path, MAX_BYTES)
        state = read_npz(data, len(data), packed=False)
        pushes = state.get("pushes")
        if pushes is None or pushes.shape != () or pushes.dtype.kind != "i" or pushes < 0:
            raise ModelCorruptError("no count of pushes")
    except (OSError, ModelCorruptError) as error:
        raise _damaged(path, error) from error
    return state


def chain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chain's part of what :func:`read_state` gave."""
    return {
        name: value.item() if value.ndim == 0 else value
        for name, value in state.items()
        if name != "pushes"
    }


def check_state(path: Path, chain: CompressorChain) -> None:
    """Raise unless a chain can go on from what a compressor wrote; the chain stays as it is.

    Raises:
        ModelCorruptError: the file is damaged.
        ConfigError: it is that of another chain.
    """
    state = chain_state(read_state(path))
    try:
        copy.deepcopy(chain).load_state(state)
    except (TypeError, ValueError, LookupError) as error:
        if not isinstance(error, ConfigError):
            raise _damaged(path, error) from error
        raise ConfigError(
            f"{path} is of another chain: {error} Or delete the file: the compressor then measures "
            "and teaches anew."
        ) from error


def _damaged(path: Path, error: Exception) -> ModelCorruptError:
    return ModelCorruptError(
        f"{path} is damaged: {reason_of(error)}. Expected the state of a compressor; restore it "
        "from a copy, or delete it: the compressor then measures anew."
    )
