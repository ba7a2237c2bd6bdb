"""The environment of an audit: how it is played, and what an audit may change in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from vinoreward.bundles.bundle import Bundle
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError
from vinoreward.rewards.interventions import Intervention, SearchSpace
from vinoreward.rewards.judge import Judge
from vinoreward.wrappers.learned_reward import LearnedReward
from vinoreward.wrappers.true_success import Truth
from vinoreward_actors.actor_learner.acting.environments import as_config_error
from vinoreward_training.audit.checks import ClaimScores, Images, Subject
from vinoreward_training.audit.states import Offer, checked_offer, offered_by
from vinoreward_training.configs import AuditConfig, MendConfig
from vinoreward_training.configs.task import RewardedTask, Task
from vinoreward_training.data.dataset import size_for
from vinoreward_training.data.dataset_files import image_reader
from vinoreward_training.runs.next_command import OF_AUDIT
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.tasks.environments import (
    dependencies_named,
    environment_arguments,
    has_own_reward,
    make_env,
    make_plain,
    reward_arguments,
    truth_reader,
    with_truth,
)

if TYPE_CHECKING:
    import gymnasium as gym

LEAST_CLAIMS = 10
"""Fewer claims say nothing."""
UNDONE = 0.5
"""Grey levels that two images of the same state may differ by, on average."""
_OFFER = (
    "a function of the environment that returns a list of vinoreward.Intervention and "
    "vinoreward.SearchSpace; mend it"
)


def difference(one: Images, other: Images) -> float:
    """Return the mean difference of two images in grey levels."""
    return float(np.abs(one.astype(np.float64) - other).mean())


@dataclass(frozen=True)
class Learner:
    """A policy to be trained on the reward under audit."""

    env: gym.Env[Any, Any]
    """Gives that reward."""
    algorithm: str
    arguments: Mapping[str, Any]
    steps: int
    truth: Truth | None = None
    """Reads the truth from ``info``; None: from the usual keys."""


@dataclass
class Episode:
    """An episode played until a success was claimed."""

    first: Images
    """Image of the reset."""
    actions: list[Any] = field(default_factory=list)
    claim: tuple[Any, Images, ClaimScores] | None = None
    """Observation, image and scores of the claim; None if there was none."""


@dataclass(frozen=True)
class AuditEnv:
    """An environment that an audit plays in, changes and searches."""

    env: gym.Env[Any, Any]
    take: Callable[[Any], Images]
    """Returns its image, given an observation."""
    act: Callable[[Any], Any] | None = None
    """Plays, given an observation; None plays at random."""
    interventions: tuple[Intervention, ...] = ()
    spaces: tuple[SearchSpace, ...] = ()
    truth: Truth = field(default_factory=Truth)
    learner: Learner | None = None

    def play(self, subject: Subject, random: np.random.Generator, steps: int) -> Episode:
        """Play an episode until a success is claimed, for at most so many steps.

        The frames of one episode resemble each other, so that one claim of each is enough.
        """
        observation, _ = self.env.reset(seed=int(random.integers(2**31)))
        episode, ended = Episode(self.take(observation)), False
        while not ended and len(episode.actions) < steps:
            action = self.env.action_space.sample() if self.act is None else self.act(observation)
            episode.actions.append(action)
            observation, _, terminated, truncated, _ = self.env.step(action)
            image = self.take(observation)
            scores = subject.score(image[None])
            if scores.rewarded[0]:
                episode.claim = observation, image, scores
            ended = bool(terminated or truncated or episode.claim)
        return episode


def open_env(
    config: AuditConfig | MendConfig, scorer: Bundle | Judge, closing: contextlib.ExitStack
) -> AuditEnv | None:
    """Return the environment of a task, with images for a bundle or a judge; None without ``env``.

    ``closing`` closes it.

    Raises:
        ConfigError: options without an environment, or one that no audit can use.
    """
    if not config.env:
        options = ("env_kwargs", *OF_AUDIT, "learn_steps")
        known = [name for name in options if hasattr(config, name)]
        refuse_ignored(config, known, "an audit without --env")
        return None
    sources = config.image_source or ("render",)
    bundle = None if isinstance(scorer, Judge) else scorer
    if (bundle is not None and bundle.spec.image.views) or len(sources) > 1:
        raise ConfigError(
            field="env",
            value=config.env,
            expected="none where the classifier scores several images, or `image_source` has them",
            remedy="leave `env` out, and audit with `pairs`",
        )
    from vinoreward_training.capture.policies import open_policy

    arguments: dict[str, Any] = {"render_mode": "rgb_array", **environment_arguments(config)}
    if has_own_reward(config.env):
        own = {} if bundle is None else {"bundle": bundle}
        arguments = {"backend": "oracle", **own, **arguments}
    (source,) = sources
    with dependencies_named(config.env):
        env = with_truth(make_plain(config.env, **arguments), config.truth)
        closing.callback(env.close)
        take = image_reader(env, config.env, source, _size_of(scorer))
        # An environment that cannot render is refused now, not after minutes.
        take(env.reset(seed=config.seed)[0])
    interventions, spaces = _offered(config.interventions, env)
    if source != "render" and (interventions or spaces):
        raise ConfigError(
            field="image_source",
            value=source,
            expected="render with interventions or search spaces, as an observation does not show "
            "a change before the next step",
        )
    act = None if config.policy is None else open_policy(config.policy, env, closing)
    return AuditEnv(env, take, act, interventions, spaces, truth_reader(config.truth))


def _size_of(scorer: Bundle | Judge) -> tuple[int, int] | None:
    """Return the (height, width) that images are resized to; None for their own."""
    if not isinstance(scorer, Judge):
        return size_for(scorer.spec.image)
    if scorer.guard is None:
        return None
    height, width = scorer.guard.size.tolist()
    return height, width


def _offered(function: str | None, env: gym.Env[Any, Any]) -> Offer:
    """Return what a function named by the user offers, or the environment itself."""
    if function is None:
        return offered_by(env.unwrapped)
    offer = named_function(function, "interventions", "a function of an environment")
    with as_config_error(f"--interventions {function} fails", _OFFER):
        offered = offer(env.unwrapped)
    return checked_offer(offered, function)


def open_learner(
    config: AuditConfig, scorer: Bundle | Judge, closing: contextlib.ExitStack
) -> Learner:
    """Return a policy as ``vinoreward train`` would build it, on the reward under audit."""
    from vinoreward_training.policy.train import SETTINGS

    task = RewardedTask(
        **{one.name: getattr(config, one.name) for one in fields(Task)},
        bundle=None if isinstance(scorer, Judge) else str(scorer.path),
        accept_foreign_images=True,  # the audit finds out whether the bundle suits them
    )
    if isinstance(scorer, Judge):
        env = make_env(task, render_mode="rgb_array", scored=False)
        env = LearnedReward(env, judge=scorer, **reward_arguments(task, env.observation_space))
    else:
        env = make_env(task)
    closing.callback(env.close)
    settings = SETTINGS.of(env=config.env, env_kwargs=config.env_kwargs)
    name, arguments = str(settings.algorithm), settings.algorithm_kwargs
    # A reader of its own: under a learned reward the truth may have another key.
    return Learner(env, name, arguments, config.learn_steps, truth_reader(config.truth))
