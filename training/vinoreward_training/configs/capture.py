"""Options of ``vinoreward capture``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class CaptureConfig:
    """Write labelled images of successes, near misses and traps.

    The result is an image folder (``success/``, ``failure/``) with a table, ``metadata.csv``.

    Examples:
        vinoreward capture --out data/hover --frames 6000
        vinoreward capture --resume --out data/hover --frames 20000
        vinoreward capture --out data/mine --env my_package:MyEnv-v0 --truth-key at_goal
        vinoreward capture --out data/article --fidelity article
    """

    out: Path = Path("data/hover")
    """Folder to write."""
    env: str = "PandaHoverRandom-v0"
    """Gymnasium id. In PandaHover and environments derived from its class, the capture places arm
    and object directly; in others it acts at random."""
    frames: int = 6000
    """Number of images."""
    seed: int = 0
    """Frame i depends only on the seed and i; in other environments, episode i does."""
    resume: bool = False
    """Continue the capture in --out with its recorded configuration, or add --frames to it."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option, you are asked."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that override a resumed run's settings even if their value is the default."""
    height: int | None = None
    """Height of a hover image; by default the environment's, 96."""
    width: int | None = None
    """Width of a hover image; by default the environment's, 128."""
    renderer: Literal["fast", "tiny"] | None = None
    """Camera of the hover scene; by default the environment's, fast."""
    mesh: Literal["full", "20"] | None = None
    """Mesh level of the hover scene; by default the environment's, 20."""
    fidelity: Literal["article"] | None = None
    """article: the hover images of ``fidelity="article"``, rendered at 960x720 with full meshes and
    resized by PIL to --height x --width. --renderer fast draws them like tiny, 15 times faster."""
    truth_key: str | None = None
    """Key of the truth in ``info``; by default the first of true_success, is_success, success and
    succeed that exists. With another key than true_success, the capture acts at random also in an
    environment derived from PandaHover."""
    per_episode: int = 4
    """Maximum images of each label per played episode. Fewer means more episodes, which support a
    lower error rate."""
    patience: int = 200
    """Stop after this many episodes in a row without an image to keep."""
    save_every: int = 500
    """Save the table after this many images."""
