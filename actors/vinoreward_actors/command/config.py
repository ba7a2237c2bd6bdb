"""Options of ``vinoreward actors``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

from annotated_types import Ge, Gt, Le

from vinoreward_training.configs.task import RUNS_CODE, Arguments, Count, Seed, Threads
from vinoreward_training.runs.settings import YamlText

Natural = Annotated[int, Ge(0), Le(10**12)]
NONE, DEFAULT, OFF = "none", "default", "off"


@dataclass(frozen=True)
class ActorsConfig:
    """Train with a full-precision learner and compressed actors.

    The learner trains the full network. A separate process compresses each version, and actors run
    the compressed one. This pays if the network takes most of an actor's step and acting is the
    bottleneck, not the learner; --profile-only tells you before a long run.

    --compress is a list of stages in YAML, or one stage:
        prune: 0.5          remove half of the neurons and channels; needs distill after it
        distill             train the remaining network to act like the full one
        distill: net3       train a separate, smaller network
        quantize: int8      8-bit arithmetic; fp16: half precision; w2 to w8: weights alone
        compile: openvino   the backend (onnxruntime, numpy); default: as --backend

    Further settings are a table: distill: {steps: 32, batch: 32}.

    --monitor watches and adjusts the compression: default (stops harmful compression), kl: 14
    (AcceRL's switch between 8 and 16 bits), alpha: {low: 0.02, high: 0.2} (AcceRL's mix of both
    networks), staged, watch (changes nothing), off.

    --preset is a training of the papers, a name below and one of its arms:
        actorq/cartpole-                fp32, int8, prune-int8, fp32-8-environments
        actorq/cartpole-dqn-            fp32, int8, fp32-8-environments, each also with -spi1
        actorq/cartpole-balance-        (one sample per insert), such as int8-spi1
        actorq/cartpole-balance-curve-  fp32, int8, fp32-8-environments
        actorq/walker-stand-curve-      fp32, int8, fp32-8-environments
        accerl/pong-                    original, original-8-environments, net3, alpha, int8,
                                        prune-int8, kl, staged

    Examples:
        vinoreward actors --task CartPole-v0 --network 2x256 --steps 60000 --target 195
        vinoreward actors --task CartPole-v0 --compress "quantize: int8" --profile-only 4000
        vinoreward actors --preset actorq/cartpole-int8 --out runs/cartpole
        vinoreward actors --resume --out runs/cartpole
        vinoreward actors --task pong --compress "[{prune: 0.5}, distill, {quantize: int8}]"
        vinoreward actors --task cheetah-run --algorithm d4pg --learner n_step 1 batch_size 128
        vinoreward actors --task my_package:MyEnv-v0 --network 2x64 --engine ray
    """

    FIRST: ClassVar[tuple[str, ...]] = (
        "out", "task", "preset", "algorithm", "network", "compress", "actors", "environments",
        "steps", "target", "learner", "profile_only", "seed", "resume",
    )  # fmt: skip

    out: Path = Path("runs/actors")
    """Folder for all files of this run."""
    preset: str | None = None
    """An experiment of the papers, such as actorq/cartpole-int8, see above."""
    config: Path | None = None
    """YAML file with these option names (underscores); the command line overrides it."""
    task: Annotated[str, RUNS_CODE] = "CartPole-v0"
    """A task of the papers (cheetah-run, pong, CartPole-v0, PandaHover-v0), or the id of a
    Gymnasium environment; dm_control/DOMAIN-TASK-v0 are Shimmy's, ALE/Game-v5 are ale-py's."""
    algorithm: str = "impala"
    """impala, dqn or d4pg."""
    network: str | None = None
    """3x2048, 2x256, any DEPTHxWIDTH; for images original, net1, net2, net3, nature. None: as in
    the task's paper."""
    compress: YamlText = NONE
    """Stages, see above; none: actors run the learner's own network."""
    monitor: YamlText = DEFAULT
    """Strategy that adjusts the compression during training, see above."""
    actors: Threads = 1
    """Number of actor processes."""
    environments: Count = 1
    """Environments per actor, stepped as one batch: try this before compressing."""
    engine: str = "local"
    """local processes, ray for a cluster, or inline: all in this process, exact to the bit."""
    backend: str = "auto"
    """Backend of actors: openvino, onnxruntime, numpy; torch is eager PyTorch, the papers'
    baseline. auto measures for a second which is the fastest for this network on this machine."""
    steps: Count = 100_000
    """Environment steps in all."""
    seed: Seed = 0
    """Seed of weights, exploration, environments and compression."""
    trajectory: Count = 20
    """Steps of each environment in one trajectory."""
    pull_period: Count = 100
    """Steps of an environment between two checks for newer weights."""
    push_period: Count = 1
    """Updates between two pushes of weights."""
    heartbeat: Annotated[float, Gt(0)] = 20.0
    """Seconds without a sign of life after which a process is replaced; a reset may take 120."""
    learner: Arguments = field(default_factory=dict)
    """Settings of the algorithm: name value name value, such as learning_rate 1e-4 gamma 0.95.
    correctors takes vtrace, importance or uncorrected, two as [vtrace, importance]."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment: name value name value."""
    truth: Annotated[str | None, RUNS_CODE] = None
    """How the true success is known: a key of info, or a function of the environment, as
    package.module:function or file.py:function. None: the usual keys, the first that is there."""
    evaluate_every: Natural = 5000
    """Steps between evaluations, which a separate process plays during training: both policies of
    one version. If one is still running, the next starts after it. 0: only at the end."""
    evaluation_episodes: Annotated[int, Ge(2), Le(10**12)] = 10
    """Episodes per evaluation, the same for the full and the compressed policy. The final
    evaluation plays three times as many, with seeds of their own."""
    target: float | None = None
    """Stop once the full policy's mean return in an evaluation reaches this."""
    checkpoint_seconds: Annotated[float, Gt(0)] = 60.0
    """Seconds between two checkpoints."""
    resume: bool = False
    """Continue the run in --out from its last checkpoint, with its recorded configuration."""
    trust_run: bool = False
    """Import the package of a task that only a file (the run's or --config's) names, as in
    package:Id-v0. This runs its code. Without this option, you are asked."""
    profile_only: Count | None = None
    """Run this many steps, then show where an actor's time goes and whether compressing pays."""
