"""What ``vinoreward play`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

Scalar = bool | int | float | str


@dataclass(frozen=True)
class PlayConfig:
    """Film a trained policy; count its claimed and its true success over many episodes.

    Examples:
        vinoreward play --run runs/hover

        vinoreward play --run runs/hover --episodes 500 --film 3 --out hover.gif

        vinoreward play --run runs/hover --human

        vinoreward play --run runs/cartpole --compressed
    """

    run: Path
    """Folder that vinoreward train or vinoreward actors wrote."""
    compressed: bool = False
    """Play the compressed policy of a run of vinoreward actors, not the full one."""
    episodes: int = 100
    """Episodes to count."""
    film: int = 5
    """How many of them to film, from the first on; 0 for none."""
    out: Path | None = None
    """The film, .gif or .mp4 (needs imageio-ffmpeg); None is play.gif in the run's folder."""
    env: str | None = None
    """Another environment (or task of actors) of the same spaces; None is that of training."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the environment that replace those of training: name value name value ..."""
    backend: str | None = None
    """Another backend for the classifier; None is the one of training."""
    bundle: str | None = None
    """Another bundle for the claims; None is the one of training."""
    accept_foreign_pictures: bool = False
    """Let the hover scene take a bundle that does not say what drew its pictures, as training."""
    encoder: str | None = None
    """Where the encoder of training is now; None is where it was."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as package:Id-v0 does: that
    runs its code. Without it you are asked; --env names it as well."""
    truth_key: str | None = None
    """Key of info that holds the truth; None is that of training, or one that is found."""
    human: bool = False
    """Show a window, which needs a display; nothing is filmed then."""
    seed: int = 1000
    """Of the first episode; the next ones count on from it."""
    progress: bool = True
    """Show the progress bar."""
