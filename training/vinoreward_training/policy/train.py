"""``vinoreward train``: a policy learns from the learned reward; true success is only recorded."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import GUARD_FILE
from vinoreward.errors import ConfigError, UnknownDeviceError, VinorewardError, needed_for
from vinoreward.files import read_json, write_json
from vinoreward.processes import interrupt_between
from vinoreward.rewards.alarms import TITLES
from vinoreward_envs.making import ORACLE
from vinoreward_training.classifier.evaluation import refuse_useless
from vinoreward_training.configs import TrainConfig
from vinoreward_training.configs.policies import Learner
from vinoreward_training.configs.task import RewardedTask
from vinoreward_training.labelling.sources import CLAIMS, TABLE, truths_of
from vinoreward_training.policy.checkpoint import (
    ALGORITHMS,
    build_model,
    discount,
    restore_checkpoint,
    resume_train,
    save_policy,
    suited_algorithms,
)
from vinoreward_training.policy.evaluate import Evaluation
from vinoreward_training.runs.next_command import (
    ITS_DATA,
    command,
    policy_folder,
    to_compare,
    to_mend,
    to_play,
)
from vinoreward_training.runs.report import Section, configuration, draw_curve, write_report
from vinoreward_training.runs.run_folder import RunFolder, ensure_dir, plain, reading
from vinoreward_training.runs.settings import (
    PRESETS,
    Settings,
    checked,
    merged,
    read_yaml,
    refuse_ignored,
)
from vinoreward_training.tasks.environments import (
    dependencies_named,
    find_bundle,
    has_own_reward,
    is_rewarded,
    make_env,
)
from vinoreward_training.tasks.many import make_batch, make_envs, sibling_env
from vinoreward_training.tasks.recorded import task_of_bundle

if TYPE_CHECKING:
    from vinoreward_training.policy.callbacks import RunCallback


MOST_EVALUATED_AT_ONCE = 32
"""Environments of a batch in which a policy is evaluated, but no more than it is trained in: for
images of another number a network would be compiled anew."""
_ONLY = {"fused": "SAC", "skrl": "PPO"}
"""Learner to the only algorithm that it has."""


def _preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset of an environment; but for ``batched.PPO`` its arguments are SAC's."""
    name, algorithm = _name(settings), settings["algorithm"] or _ONLY.get(settings["learner"])
    names = [name]
    if settings["vec_env"] == "batched":
        names += [f"{name}.batched", f"{name}.batched.{_learner(settings)}"]
    preset = _presets(*names)
    preset.pop("learner", None)  # _learner has read it
    if algorithm in (None, "SAC"):
        return preset
    preset.pop("algorithm_kwargs", None)
    if settings["vec_env"] == "batched" and _presets(f"{name}.batched"):
        preset = merged(preset, _presets(f"batched.{algorithm}"))
    return preset


def _learner(settings: Mapping[str, Any]) -> Learner:
    """Return what trains: what is named, else what the preset of a batch says, else SB3.

    The preset is of SAC on a processor: on CUDA its learner would move the batch there.
    """
    named: Learner | None = settings["learner"]
    how = settings["vec_env"], settings["algorithm"] or "SAC", settings["device"]
    if named is None and how == ("batched", "SAC", "cpu"):
        named = _presets(f"{_name(settings)}.batched").get("learner")
    return named or "sb3"


def _name(settings: Mapping[str, Any]) -> str:
    """Return the environment's name without its package."""
    return str(settings["env"]).rpartition(":")[2]


def _presets(*names: str) -> dict[str, Any]:
    """Return those of these presets that exist, later ones over earlier ones."""
    paths = {path.stem: path for path in PRESETS.glob("*.yaml")}
    return merged(*(read_yaml(paths[one], SETTINGS.names) for one in names if one in paths))


def _checked(config: TrainConfig, before: TrainConfig | None) -> TrainConfig:
    if before is None:
        config = _with_algorithm(config)
    if config.on_low_precision == "pause" and (
        config.label_every is None or config.on_alarm == "off"
    ):
        raise ConfigError(
            field="on_low_precision",
            value="pause",
            expected="claims that are labelled at random all the time, and tested",
            remedy="give `label_every`, the claims of which one is to be labelled, and `on_alarm` "
            "tell or stop",
        )
    return dataclasses.replace(
        config, timesteps=config.timesteps or 8000, learner=_learner(vars(config))
    )


def _with_algorithm(config: TrainConfig) -> TrainConfig:
    """Return the settings with an algorithm that takes the environment's actions, or raise."""
    actions: gym.Space[Any] = gym.spaces.Box(-1, 1)  # of ours
    if not has_own_reward(config.env):
        plain_task = RewardedTask(env=config.env, env_kwargs=config.env_kwargs)
        with contextlib.closing(make_env(plain_task)) as env:
            actions = env.action_space
    suited = suited_algorithms(actions)
    only = _ONLY.get(config.learner or "sb3")
    algorithm = config.algorithm or only or suited[0]
    if only is not None and algorithm != only:
        expected = f"{only} for `learner={config.learner}`"
        raise ConfigError(field="algorithm", value=algorithm, expected=expected)
    if algorithm in ALGORITHMS and algorithm not in suited:
        raise ConfigError(
            field="algorithm",
            value=algorithm,
            expected=f"{' or '.join(suited)}, as {config.env} takes actions from {actions}",
            remedy=f"leave `algorithm` out for {suited[0]}",
        )
    preset = {} if isinstance(actions, gym.spaces.Box) else _presets(algorithm)
    arguments = merged(preset.get("algorithm_kwargs", {}), config.algorithm_kwargs)
    return dataclasses.replace(config, algorithm=algorithm, algorithm_kwargs=arguments)


SETTINGS: Settings[TrainConfig] = Settings(
    TrainConfig,
    fixed=("env", "algorithm", "learner", "encoder", "seed", "num_envs", "hold", "label_every"),
    task=task_of_bundle,
    preset=_preset,
    check=_checked,
    place=lambda config: policy_folder(config.env),
)


@dataclass(frozen=True)
class TrainResult:
    """Result of a training."""

    folder: Path
    steps: int
    """Environment steps done."""
    solved_at: int | None
    """Steps after which the final evaluation confirmed the goal; None: not reached."""
    final: Evaluation
    seconds: float
    """Wall time of the training with its evaluations, including earlier processes."""
    evaluation_seconds: float
    """Seconds of evaluations among them."""


def train(config: TrainConfig) -> TrainResult:
    """Train as configured; return the result, which is in ``config.out`` as well.

    On Ctrl-C a checkpoint is written first.
    """
    if config.timesteps is None or config.learner is None:
        raise ConfigError(
            field="timesteps",
            value=config.timesteps,
            expected="all settings, as SETTINGS.of(...) completes them",
        )
    if not config.resume:
        _check_reward_used(config)
    if config.bundle is not None and config.backend != ORACLE:
        spec = Bundle.load(find_bundle(config.bundle)).spec
        refuse_useless(config.bundle, spec.metrics, force=config.force)
        if GUARD_FILE not in spec.files and config.on_ood != "ignore":
            line = command("calibrate", "--bundle", config.bundle, "--data", ITS_DATA)
            print(f"{spec.name} has no guard against images out of distribution. Add one: {line}")
    with needed_for("training", "train"):
        for library in ("stable_baselines3", "torch"):
            # Found and not yet imported: environments load their networks meanwhile.
            if importlib.util.find_spec(library) is None:
                raise ModuleNotFoundError(f"No module named {library!r}", name=library)
    if config.device not in ("cpu", "auto"):
        check_device(config.device)
    line = resume_train(config.out, config.env, config.truth)
    with RunFolder(config.out, config, resume=config.resume, again=line) as folder:
        finished = _finished(folder, config)
        if finished is None:
            with dependencies_named(config.env):
                return _train(config, folder)
        if finished.solved_at is not None and finished.steps < (config.timesteps or 0):
            print(
                f"the goal was reached at step {finished.solved_at}; to go on to step "
                f"{config.timesteps}, add --stop-when-solved None"
            )
        return finished


def _check_reward_used(config: TrainConfig) -> None:
    """Refuse options of the learned reward that would be ignored."""
    of_reward = ("reward_mode", "hold", "on_ood", "label_every")
    rewards = ("success_reward", "step_reward")
    if config.label_every is None:
        refuse_ignored(config, ("last_claims",), "a training without `label_every`")
    if not is_rewarded(config):
        by = f"a training on the own reward of {config.env}, without a bundle,"
        refuse_ignored(config, (*of_reward, *rewards), by)
    elif has_own_reward(config.env):
        by = f"{config.env}, which has a reward of its own,"
        refuse_ignored(config, ("image_source", "reward_mode", *rewards), by)
    elif config.backend == ORACLE:
        refuse_ignored(config, of_reward, "the truth as reward, with `backend=oracle`,")


def _train(config: TrainConfig, folder: Path) -> TrainResult:
    env, evaluation_env, final_env = _make_environments(config)
    import torch
    from stable_baselines3.common.logger import configure

    from vinoreward_training.policy.callbacks import RunCallback, TrainingEnded

    torch.set_num_threads(1)
    total = config.timesteps or 0
    with contextlib.ExitStack() as closing:
        closing.callback(_close, evaluation_env, env)
        model = build_model(
            config.algorithm,
            env,
            config.algorithm_kwargs,
            seed=config.seed,
            device=config.device,
            replay_size=max(total, 1000),
            learner=config.learner or "sb3",
        )
        if config.encoder is not None:
            size = (env.observation_space.shape or (0,))[0]
            print(f"the policy sees {size} numbers of the encoder {config.encoder}")
        checkpoint, clock = folder / "checkpoint.pt", (0.0, 0.0)
        if config.resume and checkpoint.is_file():
            clock = restore_checkpoint(checkpoint, model)
        start = int(model.num_timesteps)
        with interrupt_between() as check:
            callback = RunCallback(
                folder, evaluation_env, config, check_interrupt=check, start=start, clock=clock,
                final_env=final_env,
            )  # fmt: skip
            closing.callback(callback.close)
            logs = str(ensure_dir(folder / "logs" / f"from_{start}"))
            model.set_logger(configure(logs, ["tensorboard", "csv"]))
            closing.callback(model.logger.close)
            if start < total:
                with contextlib.suppress(TrainingEnded):
                    model.learn(total - start, callback=callback, reset_num_timesteps=False)
            else:
                callback.init_callback(model)
            seconds = callback.seconds
            callback.read_labels(now=True)
            callback.checkpoint_now()
        final = callback.final or callback.evaluate_finally(note=True)
        steps, solved = callback.solved_at or int(model.num_timesteps), callback.solved_at
        if solved is None and callback.reaches_goal(final):
            solved = steps
        result = TrainResult(folder, steps, solved, final, seconds, callback.evaluation_seconds)
        of_task = [one.name for one in dataclasses.fields(RewardedTask)]
        names = ("algorithm", "algorithm_kwargs", "learner", *of_task, "seed")
        save_policy(folder, model, {name: plain(getattr(config, name)) for name in names})
    _write_summary(config, callback, result)
    return result


def _close(evaluation_env: Any, env: Any) -> None:
    evaluation_env.close()  # it may draw with what belongs to the other
    with contextlib.suppress(EOFError, OSError):  # processes that a stop has ended
        env.close()


def _make(config: TrainConfig) -> Any:
    return make_env(config, gamma=discount(config.algorithm_kwargs))


def _make_environments(config: TrainConfig) -> tuple[Any, Any, Any]:
    """Return those of training, of evaluations and of the final one; the last may be the same."""
    if config.vec_env == "batched":
        env, counts = _make_all(config), (config.eval_episodes, config.final_episodes)
        try:
            often, final = (
                sibling_env(env, min(MOST_EVALUATED_AT_ONCE, env.num_envs, count), config)
                for count in counts
            )
        except VinorewardError:
            env.close()
            raise
        return env, often, final
    alone = _make(config)
    try:
        return _make_all(config) if config.num_envs > 1 else _make(config), alone, alone
    except VinorewardError:
        alone.close()
        raise


def _make_all(config: TrainConfig) -> Any:
    if config.vec_env == "batched":
        task = config
        if config.learner != "sb3" and (device := _device(config)) != "cpu":
            # On a processor NumPy's arrays and the learner's tensors are the same memory.
            kwargs = {**config.env_kwargs, "array": "torch", "device": device}
            task = dataclasses.replace(config, env_kwargs=kwargs)
        return make_batch(config.num_envs, task)
    processes = config.vec_env == "subproc" and config.num_envs > 1
    gamma = discount(config.algorithm_kwargs)
    return make_envs(config.num_envs, config, processes=processes, gamma=gamma)


def _device(config: TrainConfig) -> str:
    """Return where the learner is, as SB3 finds it for ``auto``."""
    if config.device != "auto":
        return config.device
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _finished(folder: Path, config: TrainConfig) -> TrainResult | None:
    """Return the recorded result if the run is finished."""
    path = folder / "summary.json"
    if not config.resume or not path.is_file():
        return None
    with reading(path, "what vinoreward train writes at a run's end; remove it and --resume"):
        summary = read_json(path)
        final = checked(Evaluation, summary["final"])
        names = ("steps", "solved_at", "seconds", "evaluation_seconds")
        result = TrainResult(folder, final=final, **{name: summary[name] for name in names})
    solved = result.solved_at is not None and config.stop_when_solved is not None
    return result if solved or result.steps >= (config.timesteps or 0) else None


def _write_summary(config: TrainConfig, callback: RunCallback, result: TrainResult) -> None:
    """Write ``learning_curve.png``, ``report.html`` and ``summary.json`` into the run folder."""
    folder, final, raised = result.folder, result.final, callback.raised
    title = f"{config.algorithm} on {config.env}, seed {config.seed}"
    curve = draw_curve(
        folder / "learning_curve.png", title, callback.episodes, callback.evaluations
    )
    facts: dict[str, object] = {
        "steps": result.steps,
        "goal reached at step": "not reached" if result.solved_at is None else result.solved_at,
    }
    for test in ("false", "ood", "precision"):
        steps = ", ".join(map(str, raised[test][:10]))
        facts[f"alarms of {TITLES[test]} at steps"] = steps or "none"
    facts |= callback.precision_facts()
    facts |= {
        "seconds of learning": round(result.seconds, 1),
        "of which evaluations": round(result.evaluation_seconds, 1),
        "mean return": final.mean_return,
        "mean episode length": final.mean_length,
    }
    about = (
        f"The last policy over {config.final_episodes} fresh episodes; success is that of each "
        "episode's last state."
    )
    about_curve = (
        "Thin: the last 50 training episodes. Thick: evaluations. Where claimed and true part, the "
        "policy has found a way to fool the classifier."
    )
    sections = [
        Section("Result", about, final.rates()),
        Section("In figures", facts=facts),
        Section("Learning curve", about_curve, images=[curve]),
        Section("Evaluations", rows=callback.evaluations),
        configuration(config),
    ]
    write_report(folder / "report.html", f"Training: {title}", sections)
    alarms = {
        "alarms": raised["false"],
        "ood_alarms": raised["ood"],
        "precision_alarms": raised["precision"],
        "labelled_claims": plain(callback.trust.bounds.get("precision")),
        "last_labelled_claims": plain(callback.trust.bounds.get("last_precision")),
    }
    summary = {**plain(result), "folder": ".", "timesteps": config.timesteps, **alarms}
    write_json(folder / "summary.json", summary)


def check_device(name: str) -> None:
    """Refuse a torch device that is not there: Stable-Baselines3 would silently take the CPU."""
    import torch

    present = ["cpu"]
    if torch.accelerator.is_available() and (found := torch.accelerator.current_accelerator()):
        present += [f"{found.type}:{index}" for index in range(torch.accelerator.device_count())]
    # Without a number it is the current one of its kind.
    if name not in {"auto", *present, *(device.split(":")[0] for device in present)}:
        raise UnknownDeviceError(
            field="device", value=name, expected=f"one of {', '.join(present)}, or auto"
        )


def run(config: TrainConfig) -> int:
    """Train; print the result and the next command."""
    result = train(config)
    # Not before: it imports PyTorch, and environments load their networks meanwhile.
    from vinoreward_training.policy.callbacks import ALARMS

    folder, final = result.folder, result.final
    policy, goal = vars(config), config.stop_when_solved or 0.95
    solved = final.true is not None and final.true.value >= goal
    for line in (f"steps: {result.steps}, {result.seconds:.1f} s", *final.lines()):
        print(line)
    if result.solved_at is not None:
        print(f"solved at step {result.solved_at}")
    print(f"curve:  {folder / 'learning_curve.png'}\nreport: {folder / 'report.html'}")
    following = to_play(folder, policy)
    # Where no claims were kept there is nothing to mend with.
    kept = (folder / CLAIMS / TABLE).is_file()
    learned = config.backend != ORACLE and is_rewarded(config)
    if not solved and kept and ((folder / ALARMS).is_file() or final.cheats):
        print(f"watch:  {following}")
        print("Some claims are false, or may be: mend the classifier with them.")
        following = to_mend(folder, truths_of(folder))
    elif not solved and final.true is not None and learned:
        print(
            "Learner or reward? The same training with the truth as reward shows which one fails."
        )
        following = to_compare(folder, policy)
    print(f"next:   {following}")
    return 0
