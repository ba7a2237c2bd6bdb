"""Options of the commands that measure and check: profile, bench, doctor, demo."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProfileConfig:
    """Measure the breakdown of a training step and the maximum gain of a faster backend.

    Examples:
        vinoreward profile
        vinoreward profile --backend torch --fidelity article --steps 20
        vinoreward profile --env my_package:MyEnv-v0 --bundle runs/hover-classifier/bundle
    """

    env: str = "PandaHover-v0"
    """Gymnasium id. For an environment other than ours, the bundle judges its renderings."""
    bundle: str | None = None
    """Classifier: an installed name or a folder; None: the environment's own."""
    backend: str = "openvino"
    """openvino, onnxruntime, torch or, for our environments, oracle."""
    precision: str = "auto"
    """auto, fp32, int8 or bf16."""
    fidelity: str | None = None
    """article for the article's setting."""
    steps: int = 200
    """Number of steps."""
    learner: bool = True
    """Include a gradient step, as in training: SAC's, or DQN's for discrete actions."""
    seed: int = 0
    """Seed of resets and actions."""
    out: Path = Path("runs/profile")
    """Folder for profile.json and profile.png."""
    resume: bool = False
    """Overwrite an earlier profile in the same folder."""


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


@dataclass(frozen=True)
class DoctorConfig:
    """Show what is installed, which backends and devices work, and how to add what is missing.

    Exits with 0 if the core works (wrapping your own environment with a bundle), else with 1.

    Examples:
        vinoreward doctor
        vinoreward doctor --bundle runs/hover-classifier/bundle
        vinoreward doctor --json doctor.json
    """

    bundle: str | None = None
    """Bundle whose golden frames run on every backend; None: every installed one."""
    json: Path | None = None
    """Also write the results to this file."""


@dataclass(frozen=True)
class DemoConfig:
    """Capture, fine-tune, quantize, check, train, play and report: under 5 minutes on two cores.

    1. capture: labelled images of the arm over, next to and away from the object.
    2. finetune: train a classifier on them. It starts from the shipped bundle's weights, so few
       images are enough; with --from-scratch from random ones.
    3. quantize: an INT8 network, kept only if it makes the same decisions.
    4. check: compare this classifier with the shipped one on new scenes.
    5. train: SAC learns to hover; its only reward is the classifier's.
    6. play: a film, and the true success rate according to the simulator.
    7. report: all results in one HTML file.

    After Ctrl-C, run the same command again: finished stages are skipped, and the interrupted one
    resumes.

    Examples:
        vinoreward demo
        vinoreward demo --out runs/second --seed 1
        vinoreward demo --out runs/moving --env PandaHoverRandom-v0
        vinoreward demo --out runs/scratch --from-scratch
    """

    out: Path = Path("runs/demo")
    """Folder for all files."""
    seed: int = 0
    """Seed of every stage; the images always differ from those of the shipped bundle."""
    from_scratch: bool = False
    """Start the classifier from random weights. It then needs 24000 images and 8 epochs (unless
    --frames and --epochs are given): about 15 minutes on two cores."""
    weights: Path | None = None
    """Start the classifier from these weights (.safetensors) instead of the shipped bundle's."""
    frames: int | None = None
    """Images to capture; None is 5000, from scratch 24000."""
    epochs: int | None = None
    """Epochs; None is 2, from scratch 8."""
    target_fpr: float = 0.02
    """False-positive rate of the threshold; 1 % needs more images."""
    scenes: int = 1000
    """New scenes for the comparison with the shipped classifier."""
    env: str = "PandaHover-v0"
    """Training environment; PandaHoverRandom-v0 takes some minutes more."""
    timesteps: int | None = None
    """Maximum training steps; None is the preset's. Training stops when the task is solved."""
    episodes: int = 100
    """Episodes of the final evaluation."""
