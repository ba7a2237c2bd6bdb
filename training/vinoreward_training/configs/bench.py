"""Options of ``vinoreward bench``; a separate module so that the rows can import them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class BenchConfig:
    """Run the paired comparisons behind the README's figures; write a table and JSON.

    Rows: backends, reward-path, step, camera, classifier, int8, encoders, joint, memory, install,
    overhead, overhead-pixels, solve, solve-random, solve-pixels, wall, and those of compressed
    actors: actor-step, actor-refresh, actor-tasks, actor-wire, actor-bits, actor-cartpole,
    actor-classic, actor-samples, actor-pong, actor-curves. ``actors`` stands for the latter,
    ``quick`` for the first ones, which need no training, ``all`` for all. Rows with pixels, and
    most of encoders, need an encoder (--encoder) and are skipped with a note without one.

    ``wall`` takes longest: 10 to 60 minutes for the article's setting. After Ctrl-C, --resume
    continues from its last checkpoint. The article's run uses the same bundle on resized 960x720
    images. For a classifier trained on the original ones:

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
    """Skip the rows that are already measured."""
    bundle: str = "panda-hover-classifier"
    """Classifier to measure: an installed name or a folder."""
    encoder: str = "panda-hover-encoder"
    """Encoder to measure: an installed name or a folder."""
    article_bundle: str | None = None
    """Classifier for the article's setting in ``wall``; None: the same one, on resized pictures."""
    seed: int = 1_000_000
    """First seed of scenes, far from those of a capture."""
    first_seed: int = 100
    """First seed of trainings; the presets were tuned on seeds 0 to 7."""
    seeds: int = 5
    """Trainings per arm of ``solve``, ``solve-random``, ``overhead`` and ``actor-cartpole``."""
    rounds: int = 20
    """Rounds in which the candidates are measured in turns."""
    scenes: int = 2000
    """Scenes of ``camera``, ``classifier`` and ``int8``."""
    memory_steps: int = 20_000
    """Environment steps of ``memory``."""
    train_steps: int = 8000
    """Maximum steps of a training on the fixed object."""
    random_steps: int = 20_000
    """Maximum steps of a training on the moving object."""
    pixel_steps: int = 20_000
    """Maximum steps of a training on images."""
    pixel_seeds: int = 3
    """Trainings of ``solve-pixels`` through the encoder, with consecutive seeds."""
    cnn_steps: int = 0
    """Maximum steps of the training with CnnPolicy; 0: as many as the slowest of these."""
    actor_steps: int = 150_000
    """Maximum environment steps of a training of ``actor-cartpole`` and ``actor-classic``."""
    actor_seeds: int = 3
    """Trainings per arm of the other rows with actors."""
    samples_steps: int = 3000
    """Steps of each training of ``actor-samples`` and ``actor-pong``."""
    overhead_steps: int = 2000
    """Steps of each training of ``overhead`` and ``overhead-pixels``."""
    evaluation_episodes: int = 100
    """Episodes for the decision whether a policy has solved its task."""
