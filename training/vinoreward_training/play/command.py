"""``vinoreward play``: films a trained policy and measures its success."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from tqdm import tqdm

from vinoreward.errors import (
    ConfigError,
    MissingDisplayError,
    MissingExtraError,
    ModelNotFoundError,
)
from vinoreward.files import read_json, write_json
from vinoreward_actors import policies
from vinoreward_actors.actor_learner.acting.environments import as_config_error, check_spaces
from vinoreward_actors.actor_learner.acting.evaluation import Player, evaluation_backend
from vinoreward_actors.command import settings as actors_settings
from vinoreward_actors.command.build import evaluation_options
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.tasks.lookup import make_task
from vinoreward_training.configs import PlayConfig, TrainConfig
from vinoreward_training.labelling.sources import CLAIMS, TABLE, truths_of
from vinoreward_training.play.film import Filmer, save_film
from vinoreward_training.policy.checkpoint import discount, load_policy, read_description
from vinoreward_training.policy.evaluate import EvalStep, Evaluation, Policy, evaluate
from vinoreward_training.runs.next_command import to_mend
from vinoreward_training.runs.report import Section, write_report
from vinoreward_training.runs.run_folder import plain
from vinoreward_training.tasks.environments import (
    dependencies_named,
    make_env,
    truth_reader,
    with_truth,
)
from vinoreward_training.tasks.recorded import same_environment
from vinoreward_training.tasks.trust import agree_to_run

MAX_TABLE = 20
"""Maximum number of episodes in the report's table."""


@dataclass(frozen=True)
class Opened:
    """A policy with its environment."""

    env: gym.Env[Any, Any]
    model: Policy
    description: dict[str, Any]
    """The run's description of the policy."""
    task: str
    """The environment's id."""
    truth: str | None
    unfilmed: str = ""
    """Why the environment cannot render; empty if it can, or need not."""


@dataclass(frozen=True)
class PlayResult:
    """Result of playing a policy."""

    evaluation: Evaluation
    film: Path | None
    report: Path
    returns: tuple[float, ...] = ()
    """Per episode; for a run of actors the game's score, if there is one."""
    unfilmed: str = ""
    """Why there is no film although requested."""

    @property
    def error(self) -> float | None:
        """Standard error of the mean return; None for one episode."""
        count = len(self.returns)
        return float(np.std(self.returns, ddof=1) / np.sqrt(count)) if count > 1 else None


def play(config: PlayConfig) -> PlayResult:
    """Play as configured; write the film, ``play.json`` and ``play.html`` into the run's folder."""
    filmed = min(config.film, config.episodes)
    film_path = config.run / "play.gif" if config.out is None else config.out
    if filmed and film_path.suffix.lower() != ".gif":
        raise ConfigError(field="out", value=film_path.name, expected="a name ending in .gif")
    mode = "rgb_array" if filmed else None
    with contextlib.ExitStack() as stack:
        opened = (_open_actors if is_of_actors(config.run) else _open)(config, mode, stack)
        filmer = Filmer(opened.env, 0 if opened.unfilmed else filmed)
        stack.callback(filmer.close)
        found, returns, ends = _played(config, opened, filmer)
    film = None
    if filmer.frames:
        seconds = filmer.frame_seconds
        film = save_film(film_path, filmer.frames, filmer.lasts, frame_seconds=seconds)
    record = {"config": config, "policy": opened.description, "evaluation": found}
    write_json(config.run / "play.json", {**plain(record), "returns": returns})
    report = _report(config, found, ends, film)
    return PlayResult(found, film, report, tuple(returns), opened.unfilmed)


def _open(config: PlayConfig, mode: str | None, stack: contextlib.ExitStack) -> Opened:
    """Return the policy of a training with its environment; the stack closes it."""
    description = read_description(config.run)
    if config.compressed:
        expected = f"a run of vinoreward actors, as {config.run} has only one policy"
        raise ConfigError(field="compressed", expected=expected, remedy="leave it out")
    task = _task(config, description)
    recorded = config.run / "policy.json"
    for name in ("env", "truth"):
        if getattr(config, name) is None:
            named = getattr(task, name)
            agree_to_run(named, recorded, trust_run=config.trust_run, field=name)
    env = make_env(task, render_mode=mode, gamma=discount(description.algorithm_kwargs))
    stack.callback(env.close)
    model = load_policy(config.run, env)
    return Opened(env, model, read_json(recorded), task.env, task.truth)


def _played(
    config: PlayConfig, opened: Opened, filmer: Filmer
) -> tuple[Evaluation, list[float], list[dict[str, object]]]:
    """Return the evaluation, and the return and the report's row of each episode."""
    ends: list[dict[str, object]] = []
    returns: list[float] = []
    total = 0.0
    bar = tqdm(total=config.episodes, desc="play", unit="episode", disable=None)
    with dependencies_named(opened.task), bar:

        def watch(step: EvalStep) -> None:
            nonlocal total
            filmer(step)
            total = step.reward if step.step == 0 else total + step.reward
            if step.last:
                returns.append(total)
                ends.append({**_end(step), "return": round(total, 4)})
                bar.update()

        truth = truth_reader(opened.truth)
        found = evaluate(opened.model, opened.env, config.episodes, config.seed, watch, truth=truth)
    return dataclasses.replace(found, mean_return=float(np.mean(returns))), returns, ends


def _task(config: PlayConfig, trained: TrainConfig) -> TrainConfig:
    """Return the task of a training with what the command line changes."""
    names = ("env", "truth", "bundle")
    changes: dict[str, Any] = {name: value for name in names if (value := getattr(config, name))}
    same = config.env is None or same_environment(config.env, trained.env)
    kwargs = {**(trained.env_kwargs if same else {}), **config.env_kwargs}
    return dataclasses.replace(trained, **changes, env_kwargs=kwargs)


class _Greedy:
    """Gives a player the interface of ``evaluate``."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def predict(self, observation: Any, *, deterministic: bool = False) -> tuple[Any, None]:
        """Return the best action for one observation."""
        return self._player.act(observation), None


def is_of_actors(folder: Path) -> bool:
    """Return whether ``vinoreward actors`` or ``save_policy`` wrote a folder."""
    try:
        policy = read_json(folder / "policy.json")
    except (OSError, ValueError):
        return False
    return isinstance(policy, dict) and "spec" in policy


def _open_actors(config: PlayConfig, mode: str | None, stack: contextlib.ExitStack) -> Opened:
    """Return the policy of a run of actors with its task; the stack closes both.

    ``mode`` ``"rgb_array"`` films; an environment that does not render is made without.
    """
    if config.bundle is not None:
        raise ConfigError(
            field="bundle",
            value=config.bundle,
            expected="none with a run of vinoreward actors, whose task has its own options",
            remedy=f"leave it out, or try `env_kwargs=bundle {config.bundle}`",
        )
    file = "compressed.json" if config.compressed else "policy.json"
    if config.compressed and not (config.run / file).is_file():
        raise ModelNotFoundError(
            f"there is no compressed policy in {config.run}. Expected a run of vinoreward actors "
            "with --compress, which had one at its end; leave --compressed out to play the full "
            "one."
        )
    policy = policies.load_policy(config.run / file)
    task, options, backend, truth = _recorded(config)
    options = {**options, **config.env_kwargs}
    env, unfilmed = _make_task(task, options, mode)
    env = with_truth(env, truth)
    stack.callback(env.close)
    check_spaces(env, policy.spec)
    backend = policy.backend if config.compressed else evaluation_backend(backend)
    player = stack.enter_context(Player(policy, env.action_space, backend=backend))
    description = {
        "task": task,
        "env_kwargs": options,
        "file": file,
        "version": policy.version,
        "backend": backend,
        "truth": truth,
    }
    return Opened(env, _Greedy(player), description, task, truth, unfilmed)


def _recorded(config: PlayConfig) -> tuple[str, dict[str, Any], str, str | None]:
    """Return task, options, backend and truth: the run's, or the command line's."""
    if (config.run / "config.yaml").is_file():
        # Use the run's task only if the command line names no other.
        trusted = config.trust_run or config.env is not None
        named = {} if config.truth is None else {"truth": config.truth}
        run = actors_settings.SETTINGS.of(out=config.run, resume=True, trust_run=trusted, **named)
        same = config.env is None or same_environment(config.env, run.task)
        options = evaluation_options(run) if same else {}
        truth = run.truth if same else config.truth
        if same and config.truth is None:
            recorded = config.run / "config.yaml"
            agree_to_run(truth, recorded, trust_run=config.trust_run, field="truth")
        return config.env or run.task, options, run.backend, truth
    if config.env is None:
        raise ConfigError(
            f"{config.run} has a policy, but no config.yaml with its task. Expected the one that "
            "vinoreward actors writes; name the task with `env` and `env_kwargs`."
        )
    return config.env, {}, ActorsConfig.backend, config.truth


def _make_task(
    task: str, options: dict[str, Any], render_mode: str | None
) -> tuple[gym.Env[Any, Any], str]:
    """Return an environment, and why it does not render although requested."""
    if render_mode != "rgb_array":
        return make_task(task, **{**options, "render_mode": render_mode}), ""
    env = None
    try:
        with warnings.catch_warnings(), as_config_error(f"{task} does not render", "one that does"):
            # Gymnasium warns of missing render modes; the code below reports them.
            warnings.simplefilter("ignore")
            env = make_task(task, **{**options, "render_mode": render_mode})
            env.reset(seed=0)
            if env.render() is not None:
                return env, ""
        why = "the environment has no rgb_array rendering"
    except (ConfigError, MissingDisplayError, MissingExtraError) as error:
        # Invalid options raise again below, with their own message.
        why = str(error).split(" Expected ")[0].rstrip(". ")
    if env is not None:
        env.close()
    return make_task(task, **options), why


def _end(step: EvalStep) -> dict[str, object]:
    row: dict[str, object] = {"episode": step.episode + 1, "steps": step.step}
    known = (("claimed", step.claimed), ("true", step.true))
    row |= {name: value for name, value in known if value is not None}
    if "reward_prob" in step.info:
        row["P(success)"] = float(step.info["reward_prob"])
    if "distance" in step.info:
        row["distance in cm"] = round(100 * float(step.info["distance"]), 2)
    return row


def _report(
    config: PlayConfig, found: Evaluation, ends: list[dict[str, object]], film: Path | None
) -> Path:
    both = [row for row in ends if "claimed" in row and "true" in row]
    wrong = [row for row in both if row["claimed"] != row["true"]]
    differ = f"{len(wrong)} of {len(both)} episodes" + (", the first:" if wrong else ".")
    if not both:
        differ = "Not known: no episode has both a claim and a truth."
    about = (
        "Success of an episode is that of its last state. Claimed is what the classifier said, "
        "true is what the simulator knows. Intervals are Clopper-Pearson."
    )
    mean = f"Mean return {found.mean_return:.2f}, mean length {found.mean_length:.2f} steps."
    sections = [
        Section("Success", about, found.rates()),
        Section("Episodes", mean),
        *([Section("Film", images=[film])] if film is not None else []),
        Section("Where claim and truth differ", differ, wrong[:MAX_TABLE]),
        Section(f"The first {min(MAX_TABLE, len(ends))} episodes", rows=ends[:MAX_TABLE]),
    ]
    title = f"Playing {config.run.name}"
    return write_report(config.run / "play.html", title, sections)


def run(config: PlayConfig) -> int:
    """Play; print the success rates and the path of the film."""
    result = play(config)
    error = "" if result.error is None else f" ± {result.error:.2g} (standard error)"
    print(f"mean return:     {result.evaluation.mean_return:.4g}{error}")
    for line in result.evaluation.lines():
        print(line)
    if result.film is not None:
        print(f"film:   {result.film}")
    if result.unfilmed:
        print(f"no film: {result.unfilmed}")
    print(f"report: {result.report}")
    if result.evaluation.cheats:
        print("The policy is rewarded for claims that are no successes: mend its classifier.")
        if (config.run / CLAIMS / TABLE).is_file():
            print(f"next:   {to_mend(config.run, truths_of(config.run))}")
    elif result.evaluation.claimed is not None and result.evaluation.true is not None:
        print("No clear sign that the policy cheats: nothing is left to do.")
    return 0
