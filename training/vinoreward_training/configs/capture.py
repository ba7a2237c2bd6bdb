"""What ``vinoreward capture`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro


@dataclass(frozen=True)
class CaptureConfig:
    """Write labelled pictures of successes, near misses and traps.

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
    """Gymnasium id. In PandaHover and environments derived from its class, arm and object are
    placed directly; any other is played at random."""
    frames: int = 6000
    """How many pictures."""
    seed: int = 0
    """Frame i depends on the seed and i only; of other environments, episode i."""
    resume: bool = False
    """Continue the capture in --out, with its recorded configuration, or add --frames to it."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as package:Id-v0 does: that
    runs its code. Without it you are asked."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over a resumed run's even where their value is the default."""
    height: int | None = None
    """Rows of a hover picture; by default what the environment draws, 96."""
    width: int | None = None
    """Columns of a hover picture; by default what the environment draws, 128."""
    renderer: Literal["fast", "tiny"] | None = None
    """Camera of the hover scene; by default the environment's, fast."""
    mesh: Literal["full", "20"] | None = None
    """Mesh level of the hover scene; by default the environment's, 20."""
    fidelity: Literal["article"] | None = None
    """article: the hover pictures of ``fidelity="article"``, drawn at 960x720 with full meshes and
    resized by PIL to --height x --width. --renderer fast draws them like tiny, 15 times faster."""
    truth_key: str | None = None
    """Key in ``info`` that holds the truth; by default the first that is there of true_success,
    is_success, success and succeed. An environment derived from PandaHover is played at random
    where another key than true_success is named."""
    per_episode: int = 4
    """Pictures of each label from one episode, at most, where episodes are played. Fewer come from
    more episodes, and more episodes support a lower error rate."""
    patience: int = 200
    """Give up after so many episodes in a row in which random play found nothing to keep."""
    save_every: int = 500
    """The table is saved after so many pictures."""
