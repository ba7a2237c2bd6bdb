"""Options of ``vinoreward play``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Scalar = bool | int | float | str


@dataclass(frozen=True)
class PlayConfig:
    """Film a trained policy; measure its claimed and true success over many episodes.

    Examples:
        vinoreward play --run runs/hover

        vinoreward play --run runs/hover --episodes 500 --film 3 --out hover.gif

        vinoreward play --run runs/hover --human

        vinoreward play --run runs/cartpole --compressed
    """

    run: Path
    """Folder of a run of vinoreward train or vinoreward actors."""
    compressed: bool = False
    """Play the compressed policy of a run of vinoreward actors instead of the full one."""
    episodes: int = 100
    """Number of episodes."""
    film: int = 5
    """Number of episodes to film, from the first on; 0 for none."""
    out: Path | None = None
    """The film, .gif or .mp4 (needs imageio-ffmpeg); None is play.gif in the run's folder."""
    env: str | None = None
    """Another environment (or task of actors) with the same spaces; None: as in training."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the environment that override those of training: name value name value ..."""
    backend: str | None = None
    """Another backend for the classifier; None: as in training."""
    bundle: str | None = None
    """Another bundle for the claims; None: as in training."""
    accept_foreign_pictures: bool = False
    """Accept a bundle that does not record the source of its images, as in training."""
    encoder: str | None = None
    """Current location of the training's encoder; None: unchanged."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option or --env, you are asked."""
    truth_key: str | None = None
    """Key of the truth in info; None: as in training, or found automatically."""
    human: bool = False
    """Show a window, which needs a display; makes no film."""
    seed: int = 1000
    """Seed of the first episode; increases by 1 per episode."""
    progress: bool = True
    """Show the progress bar."""
