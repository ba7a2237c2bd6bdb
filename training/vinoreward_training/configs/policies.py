"""Options of the commands that train, play and measure: train, actors, play, profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import tyro

from vinoreward.rewards.decision import OodAction, RewardMode

Scalar = bool | int | float | str


Learner = Literal["sb3", "fused", "skrl"]


@dataclass(frozen=True)
class TrainConfig:
    """Train a policy on the learned reward; write curves, checkpoints and a report.

    Examples:
        vinoreward train --out runs/hover
        vinoreward train --env PandaHoverRandom-v0 --out runs/random --seed 1
        vinoreward train --env PandaHoverPixels-v0 --encoder panda-hover-encoder --out runs/pixels
        vinoreward train --resume --out runs/hover
        vinoreward train --env CartPole-v1 --out runs/cartpole
        vinoreward train --env my_package:MyEnv-v0 --wrap-bundle --bundle my-bundle --out runs/mine
        vinoreward train --vec-env batched --out runs/fast
        vinoreward train --env PandaHoverRandom-v0 --num-envs 4 --out runs/four
        vinoreward train --env my_package:MyEnv-v0 --wrap-bundle --bundle my-bundle --num-envs 16 \\
            --out runs/sixteen
        vinoreward train --config my.yaml --algorithm-kwargs gamma 0.95 batch_size 128
    """

    out: Path = Path("runs/hover")
    """Folder for all files of this run."""
    env: str = "PandaHover-v0"
    """Gymnasium id; package:Id-v0 imports the package first."""
    algorithm: str | None = None
    """Stable-Baselines3 algorithm: SAC, TD3, DDPG, DQN, PPO or A2C. None: SAC for continuous
    actions, DQN for discrete ones, PPO for others and for --learner skrl."""
    learner: Learner | None = None
    """What trains. sb3: Stable-Baselines3. fused: a SAC of ours with gradients written out, on
    --device. skrl: the PPO of skrl on --device. None: sb3, or fused for SAC where the preset of
    --vec-env batched says so. All but sb3 need vectors as observations; all train the same kind of
    network. With fused or skrl on CUDA, --vec-env batched and --backend torch keep the environments
    on the device too."""
    timesteps: int | None = None
    """Environment steps in all; None: the preset's, else 8000."""
    seed: int = 0
    """Seed of weights, exploration and training episodes. One thread, one seed: one curve."""
    config: Path | None = None
    """YAML file with these option names (underscores); the command line overrides it."""
    backend: str = "openvino"
    """Backend of the classifier: openvino, onnxruntime, torch; oracle rewards the truth instead,
    for comparison (with --wrap-bundle also in environments that are not ours)."""
    bundle: str | None = None
    """Name or folder of the classifier's bundle, or hf:OWNER/NAME on the Hugging Face Hub; None:
    the environment's own."""
    precision: str = "auto"
    """fp32, int8, or auto: INT8 if the bundle's gate passed."""
    wrap_bundle: bool = False
    """Wrap an environment that has no learned reward in LearnedReward with --bundle."""
    image_source: tuple[str, ...] = ()
    """What the classifier looks at, with --wrap-bundle: render, obs (the observation is the
    image) or obs:KEY (one of its entries); for a bundle of several cameras one for each. None:
    those that the bundle names, else render."""
    reward_mode: RewardMode = "sparse"
    """What a step pays, with --wrap-bundle. sparse: --success-reward or --step-reward; potential:
    that and a shaping that keeps the best policy. probability and log_odds pay the network's number
    at every step, so a claimed success does not end the episode."""
    hold: int = 1
    """Steps in a row that must look like success before it is claimed. Above 1, an observation of
    one row gets the number of such steps appended, with --wrap-bundle."""
    exit_threshold: float | None = None
    """With --hold above 1: probability that is enough for a step after one that reached the
    bundle's threshold, so that a flicker does not end the row. None: the threshold."""
    on_ood: OodAction = "withhold"
    """What becomes of an image unlike all that the classifier was trained on, if the bundle has a
    guard: it does not count (withhold), a warning, an error, or ignore: nothing looks for it."""
    on_alarm: Literal["tell", "pause", "stop", "off"] = "tell"
    """When surely more than 5 % of the episodes end with a claim that is no true success (where the
    environment tells), show a tenth of their images out of distribution for the guard, or end
    before --earliest-success, or surely too few of the labelled claims are successes: tell; pause,
    too, until Enter is pressed or a file named continue appears in the run's folder; stop (go on
    with --resume); or off."""
    earliest_success: int | None = None
    """First step of an episode at which a success is possible: an alarm for claims before it. None:
    no such alarm."""
    sample_claims: int = 200
    """Claims drawn at random, each as likely, whose images are kept in claims/ for vinoreward label
    --run. 0: none."""
    num_envs: int = 1
    """Environments that are stepped together, with one classification of all their images per
    step. --timesteps counts the steps of all; off-policy algorithms make as many gradient steps per
    environment step as with one, unless --algorithm-kwargs gradient_steps says otherwise."""
    vec_env: Literal["subproc", "dummy", "batched"] = "subproc"
    """With --num-envs: subproc, one process per environment, for slow ones; dummy, all in this
    process, for those that take less than a millisecond per step; or batched, one object that
    steps, draws and judges all at once on all cores, for PandaHover and its siblings, with a
    preset of its own that trains in seconds."""
    success_reward: float = 1.0
    """Reward of a claimed success, with --wrap-bundle."""
    step_reward: float = 0.0
    """Reward of any other step, with --wrap-bundle. SAC also maximises entropy: compared with it, a
    success worth 1 may be too little to end an episode for."""
    accept_foreign_images: bool = False
    """Let the hover scene, or another that says what draws its images, use a bundle that does not
    record the source of its training images: its claims may mean nothing there."""
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
    truth: str | None = None
    """Instead of a key, a function of the environment, as package.module:function or
    file.py:function. It gets the environment inside all wrappers and returns True or False."""
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
    accept_foreign_images: bool = False
    """Accept a bundle that does not record the source of its images, as in training."""
    encoder: str | None = None
    """Current location of the training's encoder; None: unchanged."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option or --env, you are asked."""
    truth_key: str | None = None
    """Key of the truth in info; None: as in training, or found automatically."""
    truth: str | None = None
    """Instead of a key, a function of the environment, as package.module:function or
    file.py:function. It gets the environment inside all wrappers and returns True or False. None:
    as in training."""
    human: bool = False
    """Show a window, which needs a display; makes no film."""
    seed: int = 1000
    """Seed of the first episode; increases by 1 per episode."""
    progress: bool = True
    """Show the progress bar."""


@dataclass(frozen=True)
class ProfileConfig:
    """Measure the breakdown of a training step and the maximum gain of a faster backend.

    Examples:
        vinoreward profile
        vinoreward profile --backend torch --fidelity article --steps 20
        vinoreward profile --env my_package:MyEnv-v0 --bundle runs/hover-classifier/bundle
    """

    env: str = "PandaHover-v0"
    """Gymnasium id. For an environment other than ours, the bundle judges its images, from
    the sources that it was trained on."""
    bundle: str | None = None
    """Classifier: an installed name or a folder; None: the environment's own."""
    backend: str = "openvino"
    """openvino, onnxruntime, torch or, for our environments, oracle."""
    precision: str = "auto"
    """auto, fp32, int8 or bf16."""
    fidelity: str | None = None
    """article for the article's setting."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Further arguments of the environment: name value name value ..."""
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
