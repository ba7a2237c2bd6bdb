"""``vinoreward mend``: refits a classifier from labels, and keeps it only if it is no worse."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import shutil
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError
from vinoreward.files import write_json
from vinoreward.machine import usable_cores
from vinoreward.processes import forget_safe_path, starting_processes, thread_limits
from vinoreward_envs.camera.spec import resized
from vinoreward_training.audit.command import (
    MOST_THREADS,
    AuditOptions,
    audit,
    sample_per_episode,
    unseen_frames,
)
from vinoreward_training.audit.env import open_env
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.configs import MendConfig
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import cut, rendered
from vinoreward_training.data.provenance import LEAST_AUDITED
from vinoreward_training.mending.comparison import compare_bundles
from vinoreward_training.mending.examples import FILE, ExampleSource
from vinoreward_training.mending.labelled import Labelled, keep_held_out, read_all, read_data
from vinoreward_training.mending.refit import WEIGHTS, Recipe, refit
from vinoreward_training.runs.bundles import of_cut_images
from vinoreward_training.runs.next_command import after_mending, resume_mend
from vinoreward_training.runs.run_folder import RunFolder, ensure_dir

REFUSED = 3
"""Exit status where the old bundle is kept."""
CANDIDATE = "candidate"
"""Folder of the refitted bundle before it is compared, and after it was refused."""
AUDITED = AuditOptions(precision="fp32", frames=200, failing_frames=1100, states=1024)
"""Shorter than ``vinoreward audit``, as two bundles are compared."""
_SEED = 0x3E4D
"""Added to the seed of the audits, so that they draw other images, states and episodes."""


def run(config: MendConfig, recipe: Recipe | None = None) -> int:
    """Refit, audit, compare; return 0, or ``REFUSED`` where the old bundle is kept."""
    old = Bundle.load(config.bundle)
    if old.spec.kind != "classifier" or WEIGHTS not in old.spec.files or not old.spec.architecture:
        raise ConfigError(
            field="bundle",
            value=old.spec.name,
            expected=f"a classifier of vinoreward finetune, with the {WEIGHTS} of a named network",
            remedy="train one on these images",
        )
    labelled = read_all(config.labels, old)
    dataset = read_data(config.data, old.spec.image, config.success_label)
    labelled = keep_held_out(labelled, dataset)
    count = int(labelled.train.sum())
    print(
        f"{labelled.sentence}\n{count} labels are trained on, {len(labelled.train) - count} are "
        "held out"
    )
    # Data or an environment that cannot be audited are refused before the training.
    allowed, _ = unseen_frames(of_cut_images(old), dataset)
    sample_per_episode(dataset, allowed, LEAST_AUDITED, config.seed)
    with contextlib.ExitStack() as closing:
        source = open_source(config, old, closing)
        line = resume_mend(config)
        with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
            work = ensure_dir(folder / CANDIDATE)
            new = refit(config, old, dataset, labelled, work, source, recipe)
            closing.close()  # the audits have environments of their own
            return keep_better(config, old, new, dataset, labelled, folder)


def keep_better(
    config: MendConfig, old: Bundle, new: Bundle, dataset: Dataset, labelled: Labelled,
    folder: Path,
) -> int:  # fmt: skip
    """Audit both bundles and keep the new one if it is no worse; return the exit status."""
    work, saved = folder / CANDIDATE, folder / "bundle"
    before, after = audit_both(config, old, new)
    rows = compare_bundles(old, new, (before, after), dataset, labelled)
    changed = [row for row in rows if f"{row.before:.4g}" != f"{row.after:.4g}"]
    for row in changed:
        print(f"{row}  worse" if row.worse else row)
    print(f"{len(rows) - len(changed)} other measures are the same before and after")
    worse = [row for row in rows if row.worse]
    values = {
        "kept": "old" if worse else "new",
        "rows": [row.as_dict() for row in rows],
        "labels": len(labelled.labels),
        "before": before.as_dict(),
        "after": after.as_dict(),
    }
    write_json(folder / "mend.json", values)
    for each in work.glob(f"*/{FILE}"):  # no training needs them any more
        each.unlink()
    if worse:
        print("kept the old bundle, as the new one is worse:")
        print("\n".join(f"- {row}" for row in worse))
        print(f"the new one is in {work / 'bundle'}")
        return REFUSED
    if saved.exists():
        shutil.rmtree(saved)
    (work / "bundle").rename(saved)
    print(f"bundle {saved}; {after.verdict} {after.robustness}")
    if old.spec.decision is not None and old.spec.decision.translation_band:
        print(
            "note: near its threshold the old bundle scored translation averages, "
            "and this one does not"
        )
    print(f"next: {after_mending(saved, config)}")
    return 0


def open_source(
    config: MendConfig, bundle: Bundle, closing: contextlib.ExitStack
) -> ExampleSource | None:
    """Return what draws examples; None without an environment with search spaces.

    Raises:
        ConfigError: an environment that no audit can use.
        ImageMismatchError: its images are of another size.
    """
    played = open_env(config, bundle, closing)
    if played is None or not played.spaces:
        return None
    env, expected, name = played.env, bundle.spec.image, str(config.env)
    size = expected.height, expected.width

    def take() -> npt.NDArray[np.uint8]:
        image = rendered(env, name)
        if expected.crop is not None:
            image = cut(image, expected.crop, Path(name))
        if expected.resize == "none" and image.shape[:2] != size:
            raise ImageMismatchError(
                f"{name} renders images of which {image.shape[0]}x{image.shape[1]} pixels "
                f"(height x width) are scored. Expected {size[0]}x{size[1]}, as "
                f"{bundle.spec.name} takes them; render that size with `env_kwargs`."
            )
        return resized(image, *size)

    take()  # before the training
    return ExampleSource(played.spaces, take, config.seed, config.resume)


def audit_both(config: MendConfig, old: Bundle, new: Bundle) -> tuple[AuditReport, AuditReport]:
    """Audit both bundles; with an environment in two processes, as that uses one core."""
    threads = min(usable_cores(), MOST_THREADS)
    if config.env is None or threads < 2:
        return _audited(config, old, threads), _audited(config, new, threads)
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_audit, args=(sender, config, old, threads // 2))
    with starting_processes(thread_limits()):
        child.start()
    sender.close()
    try:
        after = _audited(config, new, threads - threads // 2)
        try:
            before = receiver.recv()
        except (EOFError, OSError):  # no memory for two, or only this process knows the environment
            before = _audited(config, old, threads)
    finally:
        receiver.close()
        child.terminate()
        child.join()
    return before, after


def _send_audit(sender: Connection, config: MendConfig, bundle: Bundle, threads: int) -> None:
    """Audit in a child process; the parent meets an error itself."""
    forget_safe_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    with contextlib.suppress(Exception):
        sender.send(_audited(config, bundle, threads, progress=False))


def _audited(
    config: MendConfig, bundle: Bundle, threads: int, progress: bool = True
) -> AuditReport:
    with contextlib.ExitStack() as closing:
        played = open_env(config, bundle, closing)
        options = dataclasses.replace(
            AUDITED,
            played=played,
            success_label=config.success_label,
            seed=config.seed + _SEED,
            threads=threads,
            progress=progress,
        )
        return audit(bundle, config.data, options)
