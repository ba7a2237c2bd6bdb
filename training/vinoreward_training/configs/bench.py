"""The options of ``vinoreward bench``; apart from its command so that the rows can import them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchConfig:
    """Run the paired comparisons behind the README's figures; write a table and JSON.

    Rows: backends, reward-path, step, camera, classifier, int8, encoders, joint, memory, install,
    overhead, overhead-pixels, solve, solve-random, solve-pixels, wall, and those of compressed
    actors: actor-step, actor-refresh, actor-tasks, actor-wire, actor-bits, actor-cartpole,
    actor-classic, actor-samples, actor-pong, actor-curves; ``actors`` stands for these, ``quick``
    for the first ones that take no training, ``all`` for all. Those with pixels, and most of
    encoders, need an encoder (--encoder); where it is not there, the rows say so.

    ``wall`` needs the longest: 10 to 60 minutes for the article's setting. Stopped with Ctrl-C it
    goes on from its last checkpoint with --resume. The article's run is judged by the same bundle,
    on its own 960x720 pictures resized. For a classifier trained on these very pictures:

        vinoreward capture --fidelity article --out data/article
        vinoreward finetune --data data/article --out runs/article --epochs 3 \\
            --weights runs/hover-classifier/bundle/model.safetensors --learning-rate 3e-4
        vinoreward bench --rows wall --article-bundle runs/article/bundle

    Examples:
        vinoreward bench
        vinoreward bench --rows backends camera
        vinoreward bench --rows actors --out runs/actors-bench
        vinoreward bench --rows all --resume
        vinoreward bench --rows solve --seeds 1 --out runs/one-seed
    """

    rows: tuple[str, ...] = ("quick",)
    """Names of rows, ``quick``, ``actors`` or ``all``."""
    out: Path = Path("runs/bench")
    """Folder for bench.json and bench.md."""
    resume: bool = False
    """Keep the rows that are measured already and go on with the rest."""
    bundle: str = "panda-hover-classifier"
    """Classifier to measure: an installed name or a folder."""
    encoder: str = "panda-hover-encoder"
    """Encoder to measure: an installed name or a folder."""
    article_bundle: str | None = None
    """Classifier for the article's setting in ``wall``; None: the same one, on resized pictures."""
    seed: int = 1_000_000
    """First seed of scenes; far from those of a capture."""
    first_seed: int = 100
    """First seed of trainings; the presets were tuned on seeds 0 to 7, these are others."""
    seeds: int = 5
    """Trainings of each arm of ``solve``, ``solve-random``, ``overhead`` and ``actor-cartpole``."""
    rounds: int = 20
    """Rounds in which the candidates take turns."""
    scenes: int = 2000
    """Scenes of ``camera``, ``classifier`` and ``int8``."""
    memory_steps: int = 20_000
    """Environment steps of ``memory``."""
    train_steps: int = 8000
    """Most steps of one training on the fixed object."""
    random_steps: int = 20_000
    """Most steps of one training on the moving object."""
    pixel_steps: int = 20_000
    """Most steps of one training on pictures."""
    pixel_seeds: int = 3
    """Trainings of ``solve-pixels`` through the encoder, with consecutive seeds."""
    cnn_steps: int = 0
    """Most steps of the training with CnnPolicy beside them; 0: those of the slowest of them."""
    actor_steps: int = 150_000
    """Most environment steps of one training of ``actor-cartpole`` and ``actor-classic``."""
    actor_seeds: int = 3
    """Trainings of each arm of the other rows of trainings with actors."""
    samples_steps: int = 3000
    """Steps of each training of ``actor-samples`` and ``actor-pong``."""
    overhead_steps: int = 2000
    """Steps of each training of ``overhead`` and ``overhead-pixels``."""
    evaluation_episodes: int = 100
    """Episodes that decide whether a policy has solved its task."""
