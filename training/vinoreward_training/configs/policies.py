"""Options of the commands that train, play and measure: train, play, profile."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro
from annotated_types import Ge

from vinoreward_training.configs.task import (
    Arguments,
    Count,
    RewardedTask,
    Seed,
    Share,
)

Learner = Literal["sb3", "fused", "skrl"]


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RewardedTask):
    """Train a policy on the learned reward; write curves, checkpoints and a report.

    Examples:
        vinoreward train --out runs/hover
        vinoreward train --env PandaHoverRandom-v0 --out runs/random --seed 1
        vinoreward train --env PandaHoverPixels-v0 --encoder panda-hover-encoder --out runs/pixels
        vinoreward train --resume --out runs/hover
        vinoreward train --env CartPole-v1 --out runs/cartpole
        vinoreward train --bundle runs/lift --env my_robot:Lift-v0 --out runs/lift-policy
        vinoreward train --bundle runs/lift --env my_robot:Lift-v0 --num-envs 16 --out runs/sixteen
        vinoreward train --vec-env batched --out runs/fast
        vinoreward train --config my.yaml --algorithm-kwargs gamma 0.95 batch_size 128
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "out", "env", "bundle", "truth", "timesteps", "algorithm", "algorithm_kwargs", "num_envs",
        "vec_env", "hold", "reward_mode", "encoder", "seed", "config", "resume",
    )  # fmt: skip

    out: Path = Path("runs/hover")
    """Folder for all files of this run; default: runs/NAME-policy, of the environment."""
    algorithm: str | None = None
    """Stable-Baselines3 algorithm: SAC, TD3, DDPG, DQN, PPO or A2C. None: SAC for continuous
    actions, DQN for discrete ones, PPO for others and for --learner skrl."""
    learner: Learner | None = None
    """What trains. sb3: Stable-Baselines3. fused: a SAC of ours with gradients written out, on
    --device. skrl: the PPO of skrl on --device. None: sb3, or fused for SAC where the preset of
    --vec-env batched says so. All but sb3 need vectors as observations; all train the same kind of
    network. With fused or skrl on CUDA, --vec-env batched and --backend torch keep the environments
    on the device too."""
    timesteps: Count | None = None
    """Environment steps in all; None: the preset's, else 8000."""
    seed: Seed = 0
    """Seed of weights, exploration and training episodes. One thread, one seed: one curve."""
    config: Path | None = None
    """YAML file with these option names (underscores); the command line overrides it."""
    on_alarm: Literal["tell", "stop", "off"] = "tell"
    """What an alarm does: tell, stop (go on with --resume), or off. It is raised when significantly
    more than 5 % of the episodes end with a false claim (where the truth is known) or show a tenth
    of their images out of distribution; or when too few of the labelled claims are true."""
    label_every: Count | None = None
    """Draw one of so many claims for people to label (vinoreward label): their labels bound the
    claims' precision at any time, over the whole run and over --last-claims. None: a sample of 200
    claims of the whole run."""
    last_claims: Count = 500
    """Claims behind the bound on the last ones."""
    min_precision: Share = 0.9
    """Share of the claims that must be successes."""
    on_low_precision: Literal["tell", "pause"] = "tell"
    """With --label-every, while surely fewer are: tell, as --on-alarm; or pause, too: the reward
    abstains, so that no success is claimed, until labels show a higher precision."""
    num_envs: Count = 1
    """Environments that are stepped together, with one classification of all their images per
    step. --timesteps counts the steps of all; off-policy algorithms make as many gradient steps per
    environment step as with one, unless --algorithm-kwargs gradient_steps says otherwise."""
    vec_env: Literal["subproc", "dummy", "batched"] = "subproc"
    """With --num-envs: subproc, one process per environment, for slow ones; dummy, all in this
    process, for those that take less than a millisecond per step; or batched, one object that
    steps, renders and scores all at once on all cores, for PandaHover and its siblings, with a
    preset of its own that trains in seconds."""
    algorithm_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the algorithm, as Stable-Baselines3 names them."""
    eval_every: Count = 500
    """Steps between evaluations."""
    eval_episodes: tyro.conf.Suppress[Count] = 20
    """Episodes per evaluation."""
    final_episodes: Count = 100
    """Episodes of the final evaluation, which also confirms that the task is solved."""
    stop_when_solved: Share | None = 0.95
    """Stop at this fraction of true success, if the final evaluation confirms it; None: never."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of an environment that only a file (the run's or --config's) names, as in
    package:Id-v0. This runs its code. Without this option, you are asked."""
    force: bool = False
    """Train even with a classifier that its own training found useless."""
    device: str = "cpu"
    """Torch device of the learner; small networks are fastest on the CPU."""


@dataclass(frozen=True, kw_only=True)
class PlayConfig:
    """Film a trained policy; measure its claimed and true success over many episodes.

    Examples:
        vinoreward play --run runs/hover
        vinoreward play --run runs/hover --episodes 500 --film 3 --out hover.gif
        vinoreward play --run runs/lift-policy --env my_robot:Lift-v0
        vinoreward play --run runs/cartpole --compressed
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "run", "episodes", "film", "out", "compressed", "env", "truth", "seed",
    )  # fmt: skip

    run: Path
    """Folder of a run of vinoreward train or vinoreward actors."""
    episodes: Count = 100
    """Number of episodes."""
    film: Annotated[int, Ge(0)] = 5
    """Number of episodes to film, from the first on; 0 for none."""
    out: Path | None = None
    """The film, a .gif; None is play.gif in the run's folder."""
    compressed: bool = False
    """Play the compressed policy of a run of vinoreward actors instead of the full one."""
    env: str | None = None
    """Another environment (or task of actors) with the same spaces; None: as in training."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment that override those of training: name value name value ..."""
    truth: str | None = None
    """How the true success is known, as in train; None: as in training."""
    bundle: str | None = None
    """Another bundle for the claims, such as a mended one; None: as in training."""
    seed: Seed = 1000
    """Seed of the first episode; increases by 1 per episode."""
    trust_run: bool = False
    """Import the package of an environment that only the run names, as in package:Id-v0. This runs
    its code. Without this option or --env, you are asked."""


@dataclass(frozen=True, kw_only=True)
class ProfileConfig:
    """Measure the breakdown of a training step and the maximum gain of a faster backend.

    Examples:
        vinoreward profile
        vinoreward profile --backend torch --env-kwargs fidelity article --steps 20
        vinoreward profile --env my_robot:Lift-v0 --bundle runs/lift
    """

    env: str = "PandaHover-v0"
    """Gymnasium id; package:Id-v0 imports the package first."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment: name value name value ..."""
    bundle: str | None = None
    """Classifier: an installed name or a folder; None: the environment's own."""
    backend: str = "openvino"
    """openvino, onnxruntime, torch or, for our environments, oracle."""
    precision: str = "auto"
    """auto, fp32, int8 or bf16."""
    steps: Count = 200
    """Number of steps."""
    learner: bool = True
    """Include a gradient step, as in training: SAC's, or DQN's for discrete actions."""
    out: Path = Path("runs/profile")
    """Folder for profile.json, which an earlier profile's gives way to."""
