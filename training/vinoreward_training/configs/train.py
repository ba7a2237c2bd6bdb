"""What ``vinoreward train`` can be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

Scalar = bool | int | float | str


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy on the learned reward; write curves, checkpoints and a report.

    Examples:
        vinoreward train --out runs/hover

        vinoreward train --env PandaHoverRandom-v0 --out runs/random --seed 1

        vinoreward train --env PandaHoverPixels-v0 --encoder panda-hover-encoder --out runs/pixels

        vinoreward train --resume --out runs/hover

        vinoreward train --env CartPole-v1 --algorithm DQN --out runs/cartpole

        vinoreward train --env my_package:MyEnv-v0 --wrap-bundle --bundle my-bundle --out runs/mine

        vinoreward train --config my.yaml --algorithm-kwargs gamma 0.95 batch_size 128
    """

    out: Path = Path("runs/hover")
    """Folder for everything this run writes."""
    env: str = "PandaHover-v0"
    """Gymnasium id; package:Id-v0 imports the package first."""
    algorithm: str = "SAC"
    """Stable-Baselines3 algorithm: SAC, TD3, DDPG, DQN, PPO or A2C."""
    timesteps: int | None = None
    """Environment steps in all; None is the preset's, else 8000."""
    seed: int = 0
    """Of weights, exploration and training episodes. One thread, one seed: one curve."""
    config: Path | None = None
    """YAML file with these same names (underscores); what is given here wins over it."""
    backend: str = "openvino"
    """Runs the classifier: openvino, onnxruntime, torch; oracle rewards by the truth instead."""
    bundle: str | None = None
    """Name or folder of the classifier's bundle; None is the environment's own."""
    precision: str = "auto"
    """auto takes INT8 where the bundle's gate passed; else fp32, int8."""
    wrap_bundle: bool = False
    """Put LearnedReward with --bundle around an environment that has no learned reward."""
    success_reward: float = 1.0
    """Of a claimed success, with --wrap-bundle."""
    step_reward: float = 0.0
    """Of any other step, with --wrap-bundle. SAC seeks randomness too: next to it, a success worth
    1 may be too little to end an episode for."""
    accept_foreign_pictures: bool = False
    """Let the hover scene take a bundle that does not say what drew the pictures it was trained on:
    its claims need not mean anything there."""
    encoder: str | None = None
    """Name or folder of an encoder's bundle: the policy sees its latent instead of the picture. It
    runs on --backend (OpenVINO beside the oracle) with --precision."""
    frame_stack: int = 1
    """Latents of so many steps, with --encoder."""
    encoder_sha256: tyro.conf.Suppress[str | None] = None
    """Hash of the encoder's network, recorded by the run."""
    truth_key: str | None = None
    """Key of info that holds the truth about success, beside what the classifier claims. None finds
    true_success, an is_success of the environment's own (which a learned reward moves to
    original_is_success), success or succeed."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Further arguments of the environment: name value name value ..."""
    algorithm_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the algorithm, as Stable-Baselines3 names them."""
    eval_every: int = 500
    """Steps between evaluations."""
    eval_episodes: int = 20
    """Episodes of each."""
    final_episodes: int = 100
    """Episodes of the final evaluation, which also confirms that the task is solved."""
    stop_when_solved: float | None = 0.95
    """Stop at this share of true success, once the final evaluation confirms it; None: never."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    save_replay: bool = True
    """Keep the replay buffer in checkpoints; with picture observations it is large."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only a file names, the run's or --config's, as
    package:Id-v0 does: that runs its code. Without it you are asked."""
    force: bool = False
    """Train on a classifier although its own training called it useless."""
    threads: int = 1
    """Threads of the learner. More than one is not exactly repeatable."""
    device: str = "cpu"
    """Torch device of the learner; small networks are fastest on the CPU."""
    progress: bool = True
    """Show the progress bar."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over file and preset even where their value is the default."""
