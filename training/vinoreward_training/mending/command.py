"""``vinoreward mend``: refits a classifier from labels, and keeps it only if it is no worse."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError
from vinoreward.files import write_json
from vinoreward.machine import usable_cores
from vinoreward_envs.camera.spec import resized
from vinoreward_training.audit.command import (
    MOST_THREADS,
    audit,
    environment_of,
    one_each,
    unseen_frames,
)
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.configs import AuditConfig, MendConfig
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.dataset_files import cut, rendered
from vinoreward_training.data.seen import LEAST_AUDITED
from vinoreward_training.mending.child import in_child
from vinoreward_training.mending.examples import FILE, ExampleSource
from vinoreward_training.mending.judgement import judged
from vinoreward_training.mending.labelled import Labelled, keep_held_out, read_all, read_data
from vinoreward_training.mending.refit import WEIGHTS, refit
from vinoreward_training.runs.next_command import OF_AUDIT, after_mending, resume_mend
from vinoreward_training.runs.run_folder import RunFolder, made
from vinoreward_training.runs.settings import refuse, refuse_ignored

REFUSED = 3
"""Exit status where the old bundle is kept."""
CANDIDATE = "candidate"
"""Folder of the refitted bundle before it is judged, and after it was refused."""


def run(config: MendConfig) -> int:
    """Refit, audit, compare; return 0, or ``REFUSED`` where the old bundle is kept."""
    refuse(
        "mend",
        config,
        {
            "replay": config.replay < 100,
            "share": config.share is not None and not 0 < config.share < 1,
            "epochs": config.epochs < 0,
            "learning_rate": not 0 < config.learning_rate < 1,
            "states": config.states != 0 and config.states < 256,
            "target_fpr": config.target_fpr is not None and not 0 < config.target_fpr < 1,
            "seed": config.seed < 0,
            "threads": config.threads < 0,
        },
    )
    if config.env is None:
        names = ("env_kwargs", *OF_AUDIT, "states", "examples")
        refuse_ignored(config, names, "mending without --env")
    old = Bundle.load(config.bundle)
    if old.spec.kind != "classifier" or WEIGHTS not in old.spec.files or not old.spec.architecture:
        raise ConfigError(
            f"{old.spec.name} has no {WEIGHTS} of a named network, from which a training could go "
            "on. Expected a classifier of vinoreward finetune; train one on these images."
        )
    labelled = read_all(config.labels, old)
    dataset = read_data(config.data, old.spec.image, config.success_label)
    labelled = keep_held_out(labelled, dataset)
    count = int(labelled.train.sum())
    print(
        f"{labelled.sentence}\n{count} labels are trained on, {len(labelled.train) - count} check"
    )
    # What no audit could judge, or look at, is refused before the training.
    allowed, _ = unseen_frames(old.of_cut_images(), dataset)
    one_each(dataset, allowed, LEAST_AUDITED, config.seed)
    with contextlib.ExitStack() as closing:
        source = source_of(config, old, closing)
        again = resume_mend(config)
        with RunFolder(config.out, config, resume=config.resume, again=again) as folder:
            new = refit(config, old, dataset, labelled, made(folder / CANDIDATE), source)
            closing.close()  # the audits have environments of their own
            return compare(config, old, new, dataset, labelled, folder)


def compare(
    config: MendConfig,
    old: Bundle,
    new: Bundle,
    dataset: Dataset,
    labelled: Labelled,
    folder: Path,
) -> int:
    """Audit both bundles and keep the new one if it is no worse; return the exit status."""
    work = folder / CANDIDATE
    audits = both_audited(config, old, new)
    judgement = judged(old, new, audits, dataset, labelled)
    changed = [row for row in judgement.rows if f"{row['before']:.4g}" != f"{row['after']:.4g}"]
    for row in changed:
        mark = "  worse" if row["worse"] else ""
        print(f"{row['measure']}: {row['before']:.4g} -> {row['after']:.4g}{mark}")
    print(f"{len(judgement.rows) - len(changed)} other measures are the same before and after")
    write_json(
        folder / "mend.json",
        {
            "kept": "old" if judgement.worse else "new",
            "rows": judgement.rows,
            "labels": len(labelled.labels),
            "before": audits[0].as_dict(),
            "after": audits[1].as_dict(),
        },
    )
    for each in work.glob(f"*/{FILE}"):  # no training needs them any more
        each.unlink()
    if judgement.worse:
        print("kept the old bundle, as the new one is worse:")
        print("\n".join(f"- {one}" for one in judgement.worse))
        print(f"the new one is in {work / 'bundle'}")
        return REFUSED
    saved = folder / "bundle"
    if saved.exists():
        shutil.rmtree(saved)
    (work / "bundle").rename(saved)
    print(f"bundle {saved}; {audits[1].verdict} {audits[1].robustness}")
    if old.spec.decision is not None and old.spec.decision.translation_band:
        print(
            "note: near its threshold the old bundle scored translation averages, "
            "and this one does not; vinoreward calibrate --average-shifts gives it that again"
        )
    print(f"next: {after_mending(saved, config)}")
    return 0


def source_of(
    config: MendConfig, bundle: Bundle, closing: contextlib.ExitStack
) -> ExampleSource | None:
    """Return what draws examples; None without an environment whose search spaces know the truth.

    Its images are as the network takes them.

    Raises:
        ConfigError: an environment that no audit could look at.
        ImageMismatchError: its images are of another size.
    """
    about = environment_of(_of_audit(config, bundle), bundle, closing)
    if config.env is None or not config.examples or not about["spaces"]:
        return None
    env, expected, name = about["env"], bundle.spec.image, config.env
    size = expected.height, expected.width

    def take() -> npt.NDArray[np.uint8]:
        taken = rendered(env, name)
        if expected.crop is not None:
            taken = cut(taken, expected.crop, Path(name))
        if expected.resize == "none" and taken.shape[:2] != size:
            raise ImageMismatchError(
                f"{name} renders images of which {taken.shape[0]}x{taken.shape[1]} pixels "
                f"(height x width) are judged. Expected {size[0]}x{size[1]}, as "
                f"{bundle.spec.name} takes them; render that size (--env-kwargs)."
            )
        return resized(taken, *size)

    take()  # before the training
    return ExampleSource(about["spaces"], take, seed=config.seed, resume=config.resume)


def both_audited(config: MendConfig, old: Bundle, new: Bundle) -> tuple[AuditReport, AuditReport]:
    """Audit both bundles; with an environment in two processes, as that uses one core."""
    threads = config.threads or min(usable_cores(), MOST_THREADS)
    if config.env is None or threads < 2:
        return _audited(config, old, threads), _audited(config, new, threads)
    with in_child(partial(_audited, config, old, threads // 2, False)) as answer:
        after = _audited(config, new, threads - threads // 2)
        before = answer()
    if before is None:  # no memory for two, or an environment that only this process knows
        before = _audited(config, old, threads)
    return before, after


def _audited(
    config: MendConfig, bundle: Bundle, threads: int, progress: bool = True
) -> AuditReport:
    """Audit with images, places and episodes that no audit with the usual seed draws."""
    with contextlib.ExitStack() as closing:
        about = environment_of(_of_audit(config, bundle), bundle, closing)
        run_audit = partial(audit, bundle, config.data, **about)
        return run_audit(
            success_label=config.success_label,
            precision="fp32",
            frames=200,
            dead=1100,
            states=config.states,
            seed=config.seed + 0x3E4D,
            threads=threads,
            progress=progress,
        )


def _of_audit(config: MendConfig, bundle: Bundle) -> AuditConfig:
    """Return what an audit is told of the environment."""
    return AuditConfig(
        bundle=str(bundle.path),
        data=config.data,
        env=config.env,
        env_kwargs=config.env_kwargs,
        **{name: getattr(config, name) for name in OF_AUDIT},
        learn_steps=AuditConfig.learn_steps if config.env is None else 0,
    )
