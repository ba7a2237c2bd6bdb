"""``vinoreward mend``: refits a classifier from labels, and keeps it only if it is no worse."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import fields, replace
from pathlib import Path

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError
from vinoreward.files import write_json
from vinoreward_training.audit.command import (
    AuditOptions,
    audit,
    sample_per_episode,
    unseen_frames,
)
from vinoreward_training.audit.env import open_env
from vinoreward_training.audit.report import AuditReport
from vinoreward_training.configs import MendConfig
from vinoreward_training.configs.bundles import AuditTask
from vinoreward_training.data.dataset import Dataset
from vinoreward_training.data.provenance import LEAST_AUDITED
from vinoreward_training.mending.comparison import compare_bundles
from vinoreward_training.mending.labelled import Labelled, keep_held_out, read_all, read_data
from vinoreward_training.mending.refit import WEIGHTS, Recipe, refit
from vinoreward_training.runs.bundles import of_cut_images
from vinoreward_training.runs.next_command import after_mending, resume_mend
from vinoreward_training.runs.run_folder import RunFolder, ensure_dir
from vinoreward_training.runs.settings import Settings
from vinoreward_training.tasks.environments import find_bundle
from vinoreward_training.tasks.recorded import task_of_audit

REFUSED = 3
"""Exit status where the old bundle is kept."""
CANDIDATE = "candidate"
"""Folder of the refitted bundle before it is compared, and after it was refused."""
AUDITED = AuditOptions(precision="fp32", frames=200, failing_frames=1100, states=1024)
"""Shorter than ``vinoreward audit``, as two bundles are compared."""
_SEED = 0x3E4D
"""Added to the seed of the audits, so that they draw other images, states and episodes."""


SETTINGS = Settings(
    MendConfig,
    fixed=("bundle", "data", "labels", *(one.name for one in fields(AuditTask))),
    task=task_of_audit,
)


def run(config: MendConfig, recipe: Recipe | None = None) -> int:
    """Refit, audit, compare; return 0, or ``REFUSED`` where the old bundle is kept."""
    if not config.labels:
        raise ConfigError(field="labels", value=(), expected="folders with labels to learn from")
    old = Bundle.load(find_bundle(config.bundle))
    if old.spec.kind != "classifier" or WEIGHTS not in old.spec.files or not old.spec.architecture:
        raise ConfigError(
            field="bundle",
            value=old.spec.name,
            expected=f"a classifier of vinoreward finetune, with the {WEIGHTS} of a named network",
            remedy="train one on these images",
        )
    labelled = read_all(config.labels, old)
    dataset = read_data(config.data, old.spec)
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
        open_env(config, old, closing)
    line = resume_mend(config)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        new = refit(config, old, dataset, labelled, ensure_dir(folder / CANDIDATE), recipe)
        return keep_better(config, old, new, dataset, labelled, folder)


def keep_better(
    config: MendConfig, old: Bundle, new: Bundle, dataset: Dataset, labelled: Labelled,
    folder: Path,
) -> int:  # fmt: skip
    """Audit both bundles and keep the new one if it is no worse; return the exit status."""
    work, saved = folder / CANDIDATE, folder / "bundle"
    before, after = (_audited(config, bundle) for bundle in (old, new))
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


def _audited(config: MendConfig, bundle: Bundle) -> AuditReport:
    with contextlib.ExitStack() as closing:
        played = open_env(config, bundle, closing)
        options = replace(AUDITED, played=played, seed=config.seed + _SEED, progress=True)
        return audit(bundle, config.data, options)
