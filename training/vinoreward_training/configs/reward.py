"""Options of ``vinoreward reward``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from vinoreward_training.configs.task import RUNS_CODE, Seed, Task


@dataclass(frozen=True, kw_only=True)
class RewardConfig(Task):
    """Make a learned reward in one go: capture, train, audit, try it on a policy, mend, report.

    1. pilot: 20 episodes tell how often there is a success, how long an image takes, and which
       false-positive rate the time can support.
    2. capture and finetune, twice if the first verdict names a cure that can be applied here.
    3. audit: try to cheat the classifier.
    4. train: a short training, its claims beside the truth; mend the classifier with false claims.
    5. report: one page, and the lines of Python that use the reward.

    After Ctrl-C, go on with --resume --out: finished stages are skipped.

    Examples:
        vinoreward reward --env my_robot:Lift-v0
        vinoreward reward --env my_robot:Lift-v0 --truth at_goal --policy demos.py:act --minutes 40
        vinoreward reward --data photos
        vinoreward reward --resume --out runs/lift
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "env", "data", "truth", "policy", "minutes", "env_kwargs", "image_source", "out", "seed",
        "resume",
    )  # fmt: skip

    data: Path | None = None
    """Instead of an environment: a folder of labelled photographs, with a sub-folder success/ and
    others."""
    policy: Annotated[str | None, RUNS_CODE] = None
    """Who plays, as in capture; None: at random."""
    minutes: Annotated[float, Ge(1), Le(10_000)] = 20.0
    """Time for all of it, about."""
    out: Path = Path("runs/reward")
    """Folder for all files; the bundle is written to OUT/bundle. Default: runs/NAME, of the
    environment or the data."""
    seed: Seed = 0
    """Of every stage."""
    resume: bool = False
    """Continue the run in --out with its recorded settings."""
    trust_run: bool = False
    """Import the package of an environment that only the run names. This runs its code. Without
    this option, you are asked."""
