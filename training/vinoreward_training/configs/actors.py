"""The options of ``vinoreward actors``, apart from the command: its parts import them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import tyro

Scalar = bool | int | float | str


@dataclass(frozen=True)
class ActorsConfig:
    """Learn in full precision, act compressed: actors, a learner and a compressor at work together.

    The learner keeps the full network; a process beside it makes a small one of each version, and
    actors run that. Does it pay? --profile-only says so before a long run: where the network takes
    little of an actor's step, or the learner is what limits, it does not.

    --compress is a chain of stages with | between them:
        prune 0.5           remove half of the neurons and channels; distill has to follow
        distill             teach what is left to act like the full network
        distill net3        teach a smaller network by itself
        low-rank 64         two thin layers for a wide one; or low-rank energy=0.9
        fuse                fold what can be computed beforehand
        int8 | fp16 | w4    8-bit arithmetic; half precision; weights alone in 2 to 8 bits
        openvino            what runs it (onnxruntime, numpy); left out: as --backend

    Further settings are key=value: distill batch=32, int8 margin=1.5.

    --monitor watches and turns the compression: default (stops one that hurts), kl 14 (AcceRL's
    switch between 8 and 16 bits), alpha 0.02 0.2 (AcceRL's mix of both networks), staged, sparsity,
    watch (only looks), off.

    Examples:
        vinoreward actors --task CartPole-v0 --network 2x256 --steps 60000 --target 195

        vinoreward actors --task CartPole-v0 --compress int8 --profile-only 4000

        vinoreward actors --preset actorq/cartpole-int8 --out runs/cartpole

        vinoreward actors --resume --out runs/cartpole

        vinoreward actors --list-presets

        vinoreward actors --task pong --compress "prune 0.5 | distill | int8 | openvino"

        vinoreward actors --task cheetah-run --algorithm d4pg --learner n_step 1 batch_size 128

        vinoreward actors --task CartPole-v0 --network 2x256 --pull-study 10 40 160 640

        vinoreward actors --task my_package:MyEnv-v0 --network 2x64 --engine ray
    """

    out: Path = Path("runs/actors")
    """Folder for everything this run writes."""
    preset: str | None = None
    """An experiment of the papers, such as actorq/cartpole-int8; --list-presets shows them."""
    config: Path | None = None
    """YAML file with these same names (underscores); what is given here wins over it."""
    task: str = "CartPole-v0"
    """A task of the papers (cheetah-run, pong, CartPole-v0, PandaHover-v0), dm_control/DOMAIN-TASK,
    atari/GAME, or the id of a Gymnasium environment."""
    algorithm: str = "impala"
    """impala, dqn, d4pg, sac; sb3-sac, sb3-td3, sb3-dqn learn with Stable-Baselines3's."""
    network: str | None = None
    """3x2048, 2x256, any DEPTHxWIDTH (with -relu or -tanh behind it); for pictures original, net1,
    net2, net3, nature. None: the task's own in its paper."""
    compress: str = "none"
    """Stages with | between them, see above; none lets actors run the learner's own network."""
    correctors: str | None = None
    """vtrace, importance, retrace, tree-backup, q-lambda or uncorrected; with | two of them. None:
    the algorithm's own."""
    monitor: str = "default"
    """What turns the compression while training runs, see above."""
    actors: int = 1
    """Processes that act."""
    environments: int = 1
    """Environments that each of them acts on as one batch: try this before compressing."""
    engine: str = "local"
    """local processes, or ray for a cluster."""
    backend: str = "openvino"
    """Runs full-precision weights in actors: openvino, onnxruntime, numpy; torch is eager PyTorch,
    the papers' baseline."""
    steps: int = 100_000
    """Environment steps in all."""
    seed: int = 0
    """Of weights, exploration, environments and compression."""
    trajectory: int = 20
    """Steps of each environment in one trajectory."""
    pull_period: int = 100
    """Steps of an environment between two looks for newer weights."""
    push_period: int = 1
    """Updates between two pushes of weights."""
    bits: int = 32
    """Of a weight on its way from the learner: 32, 16, or 2 to 8. Fewer are watched by the monitor
    and evaluated like any other compression."""
    lag: int | None = None
    """Actors are exactly so many updates behind: repeatable to the bit. None: newest weights."""
    max_lag: int = 100
    """Trajectories whose weights are more pushes old are never learned from (but by a replay)."""
    max_staleness: int = 100
    """Compressed weights that are more pushes behind the learner's are not acted with; at most
    --max-lag counts, without a replay."""
    samples_per_insert: float = 8.0
    """Transitions learned from for each one acted, for algorithms with a replay."""
    learner: dict[str, Scalar] = field(default_factory=dict)
    """Settings of the algorithm: name value name value, such as learning_rate 1e-4 gamma 0.95."""
    env_kwargs: dict[str, Scalar] = field(default_factory=dict)
    """Arguments of the environment: name value name value."""
    evaluate_every: int = 5000
    """Steps between evaluations, which a process plays beside training: both policies of one
    version. One that is due while another is under way begins after it. 0: only at the end."""
    evaluation_episodes: int = 10
    """Episodes of each, the same for the full and the compressed policy."""
    final_episodes: int = 30
    """Episodes of the last one, whose seeds no other uses."""
    target: float | None = None
    """Stop once the full policy's mean return in an evaluation reaches this."""
    threads: int = 1
    """Threads of the learner."""
    checkpoint_seconds: float = 60.0
    """Between two checkpoints."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of a task that only a file names, the run's or --config's, as
    package:Id-v0 does: that runs its code. Without it you are asked."""
    profile_only: int | None = None
    """Run so many steps, then say where an actor's time goes and whether compressing can pay."""
    pull_study: tuple[int, ...] = ()
    """Run once for each of these pull periods and seeds; one plot and one table."""
    study_seeds: int = 3
    """Seeds of --pull-study, from --seed on."""
    list_presets: bool = False
    """Show the presets and end."""
    progress: bool = True
    """Show the progress bar."""
    explicit: tyro.conf.Suppress[tuple[str, ...]] = ()
    """Names that win over file and preset even where their value is the default."""
