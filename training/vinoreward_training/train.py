"""``vinoreward train``: a policy learns from the learned reward; the truth is only watched."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import MissingExtraError, install_command
from vinoreward_training.environments import (
    check_bundle_used,
    dependencies_named,
    make_env,
    naming,
)
from vinoreward_training.evaluate_policy import Evaluation, Rate
from vinoreward_training.evaluation import refuse_useless
from vinoreward_training.next_command import again, command
from vinoreward_training.policy_files import read_description
from vinoreward_training.run_folder import RunFolder, plain
from vinoreward_training.torch_devices import check_device
from vinoreward_training.train_settings import resolve, settle_encoder

if TYPE_CHECKING:
    import gymnasium as gym
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.logger import Logger

    from vinoreward_training.callbacks import RunCallback

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


@dataclass(frozen=True)
class TrainResult:
    """What a training came to."""

    folder: Path
    steps: int
    """Environment steps done."""
    solved_at: int | None
    """Steps after which the final evaluation confirmed the goal; None: it was not reached."""
    final: Evaluation
    seconds: float
    """Wall time of the learning, evaluations included; of a resumed run, all of its parts."""
    evaluation_seconds: float
    """How much of that went into evaluations."""


def train(config: TrainConfig) -> TrainResult:
    """Train as configured and return what came out; everything is in ``config.out`` as well.

    Raises:
        ConfigError: a setting that cannot work, or a folder that holds a run already.
        UnknownDeviceError: torch has no such device on this machine.
        MissingExtraError: the training extra, or what the environment needs, is not installed.
        ModelCorruptError: the checkpoint to resume from does not fit.
        UselessClassifierError: its training called the classifier useless; not with ``force``.
        RunFolderError: the folder is in use or cannot be written.
        KeyboardInterrupt: Ctrl-C; a checkpoint was written first.
    """
    settled = settle_encoder(resolve(config))
    check_bundle_used(settled.env, settled.bundle, wrap_bundle=settled.wrap_bundle)
    if settled.bundle is not None and settled.backend != "oracle":
        metrics = Bundle.load(settled.bundle).spec.metrics
        refuse_useless(settled.bundle, metrics, force=settled.force)
    try:
        import stable_baselines3  # noqa: F401
        import torch
    except ImportError as error:
        raise MissingExtraError(
            f"training needs {error.name}, which is not installed. Expected the training extra; "
            f"run: {install_command('train')}"
        ) from error
    check_device(settled.device)
    torch.set_num_threads(settled.threads)
    line = again("train", settled.out, *naming(settled.env))
    with RunFolder(settled.out, settled, resume=settled.resume, again=line) as folder:
        finished = _finished(folder, settled)
        if finished is not None:
            return finished
        with dependencies_named(settled.env):
            return _train(settled, folder)


def _train(config: TrainConfig, folder: Path) -> TrainResult:
    from vinoreward_training.callbacks import RunCallback, TrainingStopped, interruptible
    from vinoreward_training.checkpoint import build_model, restore_checkpoint
    from vinoreward_training.policy_files import save_policy
    from vinoreward_training.train_report import write_summary

    total = config.timesteps or 0
    env, evaluation_env = _make(config), _make(config)
    callback: RunCallback | None = None
    closing = contextlib.ExitStack()
    try:
        model = build_model(
            config.algorithm,
            env,
            config.algorithm_kwargs,
            seed=config.seed,
            device=config.device,
            replay_size=max(total, 1000),
        )
        _say_policy(config, env)
        checkpoint = folder / "checkpoint.pt"
        if config.resume and checkpoint.is_file():
            restore_checkpoint(checkpoint, model)
        start = int(model.num_timesteps)
        with interruptible() as interrupt:
            callback = RunCallback(
                folder,
                evaluation_env,
                total=total,
                interrupt=interrupt,
                start=start,
                eval_every=config.eval_every,
                eval_episodes=config.eval_episodes,
                final_episodes=config.final_episodes,
                checkpoint_every=config.checkpoint_every,
                save_replay=config.save_replay,
                stop_when_solved=config.stop_when_solved,
                progress=config.progress,
                truth_key=config.truth_key,
            )
            closing.callback(_log_to(model, folder / "logs" / f"from_{start}").close)
            if start < total:
                with contextlib.suppress(TrainingStopped):
                    model.learn(total - start, callback=callback, reset_num_timesteps=False)
            else:
                callback.init_callback(model)
            seconds = callback.seconds
            callback.checkpoint_now()
        if callback.interrupted:
            print(f"\nStopped at step {model.num_timesteps}; the checkpoint is written.")
            raise KeyboardInterrupt
        result = _conclude(model, callback, folder, seconds)
        save_policy(folder, model, _description(config))
    finally:
        if callback is not None:
            callback.close()
        closing.close()
        env.close()
        evaluation_env.close()
    write_summary(config, callback, result)
    return result


def _make(config: TrainConfig) -> Any:
    return make_env(
        config.env,
        config.env_kwargs,
        backend=config.backend,
        bundle=config.bundle,
        precision=config.precision,
        wrap_bundle=config.wrap_bundle,
        encoder=config.encoder,
        encoder_sha256=config.encoder_sha256,
        frame_stack=config.frame_stack,
        accept_foreign_pictures=config.accept_foreign_pictures,
        success_reward=config.success_reward,
        step_reward=config.step_reward,
    )


def _say_policy(config: TrainConfig, env: gym.Env[Any, Any]) -> None:
    from vinoreward_training.checkpoint import policy_for

    if config.encoder is not None:
        size = (env.observation_space.shape or (0,))[0]
        print(f"the policy sees {size} numbers of the encoder {config.encoder}")
    elif "policy" not in config.algorithm_kwargs:
        chosen = policy_for(env.observation_space)
        if chosen == "CnnPolicy":
            print("the observation is a picture: Stable-Baselines3's CnnPolicy learns from it")


def _log_to(model: BaseAlgorithm, folder: Path) -> Logger:
    from stable_baselines3.common.logger import configure

    logger = configure(str(folder), ["tensorboard", "csv"])
    model.set_logger(logger)
    return logger


def _conclude(
    model: BaseAlgorithm, callback: RunCallback, folder: Path, seconds: float
) -> TrainResult:
    final = callback.final
    if final is None:
        final = callback.evaluate_finally(note=True)
    steps = callback.solved_at or int(model.num_timesteps)
    solved = callback.solved_at
    if solved is None and callback.reaches_goal(final):
        solved = steps
    model.logger.close()
    return TrainResult(folder, steps, solved, final, seconds, callback.evaluation_seconds)


def _description(config: TrainConfig) -> dict[str, Any]:
    names = ("algorithm", "algorithm_kwargs", "env", "env_kwargs", "backend", "bundle", "precision")
    seen = (
        "wrap_bundle",
        "accept_foreign_pictures",
        "encoder",
        "encoder_sha256",
        "frame_stack",
        "seed",
        "truth_key",
        "success_reward",
        "step_reward",
    )
    return {name: plain(getattr(config, name)) for name in (*names, *seen)}


def _finished(folder: Path, config: TrainConfig) -> TrainResult | None:
    """Return the recorded result where resuming would have nothing left to do."""
    path = folder / "summary.json"
    if not config.resume or not path.is_file():
        return None
    found = json.loads(path.read_text(encoding="utf-8"))
    if found["solved_at"] is None and found["steps"] < (config.timesteps or 0):
        return None
    final = found["final"]
    rates = [None if final[n] is None else Rate(**final[n]) for n in ("claimed", "true")]
    # Runs of the first version do not say which key the truth was read from.
    means, key = (final["mean_return"], final["mean_length"]), final.get("truth_key")
    evaluation = Evaluation(rates[0], rates[1], *means, key)
    seconds = (found["seconds"], found["evaluation_seconds"])
    return TrainResult(folder, found["steps"], found["solved_at"], evaluation, *seconds)


def run(config: TrainConfig) -> int:
    """Train, print what came out and the next command."""
    result = train(config)
    env = str(read_description(result.folder)["env"])
    print(f"steps: {result.steps}, {result.seconds:.1f} s")
    for line in result.final.lines():
        print(line)
    if result.solved_at is not None:
        print(f"solved at step {result.solved_at}")
    print(f"curve:  {result.folder / 'learning_curve.png'}")
    print(f"report: {result.folder / 'report.html'}")
    print(f"next:   {command('play', '--run', result.folder, *naming(env))}")
    return 0
