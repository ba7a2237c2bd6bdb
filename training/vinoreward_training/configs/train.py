"""Options of ``vinoreward train``."""

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
    """Folder for all files of this run."""
    env: str = "PandaHover-v0"
    """Gymnasium id; package:Id-v0 imports the package first."""
    algorithm: str = "SAC"
    """Stable-Baselines3 algorithm: SAC, TD3, DDPG, DQN, PPO or A2C."""
    timesteps: int | None = None
    """Environment steps in all; None: the preset's, else 8000."""
    seed: int = 0
    """Seed of weights, exploration and training episodes. One thread, one seed: one curve."""
    config: Path | None = None
    """YAML file with these option names (underscores); the command line overrides it."""
    backend: str = "openvino"
    """Backend of the classifier: openvino, onnxruntime, torch; oracle rewards the truth instead."""
    bundle: str | None = None
    """Name or folder of the classifier's bundle; None: the environment's own."""
    precision: str = "auto"
    """fp32, int8, or auto: INT8 if the bundle's gate passed."""
    wrap_bundle: bool = False
    """Wrap an environment that has no learned reward in LearnedReward with --bundle."""
    success_reward: float = 1.0
    """Reward of a claimed success, with --wrap-bundle."""
    step_reward: float = 0.0
    """Reward of any other step, with --wrap-bundle. SAC also maximises entropy: compared with it, a
    success worth 1 may be too little to end an episode for."""
    accept_foreign_pictures: bool = False
    """Let the hover scene use a bundle that does not record the source of its training images: its
    claims may mean nothing there."""
    encoder: str | None = None
    """Name or folder of an encoder's bundle: the policy gets its latent instead of the image. It
    runs on --backend (OpenVINO for the oracle) with --precision."""
    frame_stack: int = 1
    """Number of steps whose latents are stacked, with --encoder."""
    encoder_sha256: tyro.conf.Suppress[str | None] = None
    """Hash of the encoder's network, recorded by the run."""
    truth_key: str | None = None
    """Key of the true success in info. None finds true_success, the environment's own is_success
    (which a learned reward moves to original_is_success), success or succeed."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Further arguments of the environment: name value name value ..."""
    algorithm_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the algorithm, as Stable-Baselines3 names them."""
    eval_every: int = 500
    """Steps between evaluations."""
    eval_episodes: int = 20
    """Episodes per evaluation."""
    final_episodes: int = 100
    """Episodes of the final evaluation, which also confirms that the task is solved."""
    stop_when_solved: float | None = 0.95
    """Stop at this fraction of true success, if the final evaluation confirms it; None: never."""
    checkpoint_every: int = 1000
    """Steps between checkpoints."""
    save_replay: bool = True
    """Save the replay buffer in checkpoints; with image observations it is large."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only a file (the run's or --config's) names, as in
    package:Id-v0. This runs its code. Without this option, you are asked."""
    force: bool = False
    """Train even with a classifier that its own training found useless."""
    threads: int = 1
    """Threads of the learner. More than one does not repeat exactly."""
    device: str = "cpu"
    """Torch device of the learner; small networks are fastest on the CPU."""
    progress: bool = True
    """Show the progress bar."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that override file and preset even if their value is the default."""
