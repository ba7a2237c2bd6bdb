"""The compressor's loop: wait for newer weights, compress, look, publish. Beside training, never in
its way: if it is late, actors go on with what they have, and if it dies, with the learner's own.
"""

from __future__ import annotations

import contextlib
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward.actor_learner.link import NONE, CompressorLink
from vinoreward.actor_learner.orders import Orders
from vinoreward.actor_learner.trajectory import FULL_PRECISION
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.context import Compiler, CompressionContext
from vinoreward.compression.quality import check_policy
from vinoreward.errors import ModelCorruptError, OutputError, VinorewardError
from vinoreward.files import atomic_path
from vinoreward.policies.policy import Policy

STATE_FILE = "compressor.npz"
KNOB_BITS = 32
QUALITY_ROWS = 64
"""Observations on which a policy is compared with its teacher: the newest, and few, since actors
wait for the next one."""


@dataclass(frozen=True)
class CompressorConfig:
    """What the compressor is told once.

    Attributes:
        chain: the stages.
        seed: of the run.
        folder: where its state is written when asked, and read from on resuming; None for nowhere.
        resume: read the state first.
    """

    chain: CompressorChain
    seed: int = 0
    folder: Path | None = None
    resume: bool = False


def read_state(path: Path) -> dict[str, Any]:
    """Return what a compressor wrote there.

    Raises:
        ModelCorruptError: the file is damaged.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            state = {name: stored[name] for name in stored.files}
        if "pushes" not in state:
            raise ValueError("no count of pushes")
    except (
        OSError,
        ValueError,
        EOFError,
        LookupError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        raise ModelCorruptError(
            f"{path} is damaged ({type(error).__name__}). Expected the state of a compressor; "
            "restore it from a copy, or delete it: the compressor then measures anew."
        ) from error
    return state


def copied(policy: Policy) -> Policy:
    """Return a policy with arrays of its own, for one that lies in leased memory."""
    return policy.replace(parameters={k: np.array(v) for k, v in policy.float_parameters().items()})


class Compressor:
    """Compresses every version it gets to, newest first.

    Args:
        config: what to do.
        link: to the learner.
        compiler: gives an engine's compiled form of a policy.
    """

    def __init__(
        self, config: CompressorConfig, link: CompressorLink, compiler: Compiler | None = None
    ) -> None:
        self._config = config
        self._link = link
        self._compiler = compiler
        self._chain = config.chain
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
            teacher = copied(weights.policy())
            have = teacher.version
            with self._told(have):
                self._push(teacher, self._link.orders())
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

    def _push(self, teacher: Policy, orders: Orders) -> None:
        observations = self._link.observations()
        if not orders.enabled_at(teacher.version) or observations is None:
            return
        start, cpu = time.perf_counter(), time.process_time()
        knobs = self._chain.knobs()
        context = CompressionContext(
            teacher=teacher,
            observations=observations,
            push=self._pushes,
            seed=self._config.seed,
            compiler=self._compiler,
            bits=float(orders.bits or KNOB_BITS) if "bits" in knobs else None,
            sparsity=orders.sparsity if "sparsity" in knobs else None,
        )
        policy = self._chain.compress(teacher, context)
        self._pushes += 1
        quality = check_policy(policy, teacher, observations[-QUALITY_ROWS:])
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
        asked = self._link.orders().save
        if asked <= self._saved or self._config.folder is None:
            return
        self._saved = asked
        arrays: dict[str, Any] = {name: np.asarray(v) for name, v in self._chain.state().items()}
        arrays["pushes"] = np.asarray(self._pushes)
        with (
            self._told(NONE),
            atomic_path(self._config.folder / STATE_FILE) as part,
            part.open("wb") as stream,
        ):
            np.savez(stream, **arrays)

    def _load(self, path: Path) -> None:
        state = read_state(path)
        self._pushes = int(state.pop("pushes"))
        self._chain.load_state(
            {name: value.item() if value.ndim == 0 else value for name, value in state.items()}
        )
