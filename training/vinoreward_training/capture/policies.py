"""Policies that a capture plays: a zip of Stable-Baselines3, a run of ours, or a function.

Of a zip only numbers, text and tensors are read, never its pickles: they could run any code. A
function's file is run, as the user named it.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from vinoreward.backends.probe import MAX_WEIGHTS, read_weights
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, ModelCorruptError
from vinoreward.files import DAMAGED, open_archive, open_to_read, reason_of
from vinoreward.images import shown_name
from vinoreward_actors.actor_learner.acting.environments import as_config_error, check_actions
from vinoreward_actors.actor_learner.acting.evaluation import Player
from vinoreward_actors.command.settings import SETTINGS as ACTORS
from vinoreward_actors.policies import load_policy as load_actors_policy
from vinoreward_training.play.command import is_of_actors
from vinoreward_training.policy.checkpoint import (
    build_model,
    check_numbering,
    load_policy,
    read_description,
)
from vinoreward_training.tasks.trust import names_function

Act = Callable[[Any], Any]
"""Returns the action for one observation."""
KINDS = "a zip of Stable-Baselines3, a run folder, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION"
_ALGORITHMS = {
    "stable_baselines3.sac.policies": "SAC",
    "stable_baselines3.td3.policies": "TD3",
    "stable_baselines3.dqn.policies": "DQN",
    "stable_baselines3.common.policies": "A2C",  # and PPO, with the same network
}
"""Module of SB3's policy class to an algorithm that builds it."""
_ANEW = (
    "write a file with `def act(observation): return model.predict(observation, "
    "deterministic=True)[0]`, where model is loaded as you trained it, and give FILE.py:act"
)
_PLAIN = (bool, int, float, str, list, dict, type(None))


def open_policy(named: str, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    """Return the best actions of a policy in an environment, each checked to be of its space.

    Args:
        named: ``KINDS``.
        env: the environment that it will act in.
        closing: closes what the policy holds.

    Raises:
        ConfigError: no such policy, or one for other observations or actions.
        ModelCorruptError: a damaged file.
    """
    path = Path(named)
    if names_function(named):
        act = named_function(named, "policy", "a function of an observation that gives the action")
    elif path.is_dir():
        act = _of_run(path, env, closing)
    elif path.is_file() and zipfile.is_zipfile(path):
        act = _of_zip(path, env)
    else:
        found = "which is no zip" if path.is_file() else "which is not there"
        raise ConfigError(f"--policy is {named}, {found}. Expected {KINDS}; check the path.")
    return _checked(act, env.action_space, named)


def _checked(act: Act, space: gym.Space[Any], named: str) -> Act:
    """Bring actions to the space's dtype and limits; refuse those of another shape."""

    def checked(observation: Any) -> Any:
        with as_config_error(f"--policy {named} fails", "an action for each observation; mend it"):
            action = act(observation)
        fitting: Any = action
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            if isinstance(space, gym.spaces.Box):
                fitting = np.asarray(action, dtype=space.dtype)
                if fitting.shape == space.shape:
                    fitting = np.clip(fitting, space.low, space.high)
            elif isinstance(space, gym.spaces.Discrete) and np.size(action) == 1:
                fitting = int(np.asarray(action).item())
        if not space.contains(fitting):
            raise ConfigError(
                f"--policy {named} gives the action {str(action)[:100]!r}. Expected one of "
                f"{space}, as the environment takes; name a policy for it."
            )
        return fitting

    return checked


def _of_run(folder: Path, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    """Return the policy of a run of ``vinoreward train`` or ``vinoreward actors``."""
    if is_of_actors(folder):
        return _of_actors(folder, env, closing)
    description = read_description(folder)
    if description.encoder is not None:
        raise ConfigError(
            f"the policy in {folder} acts on latents of the encoder {description.encoder}, "
            "which a capture does not compute. Expected one that acts on the environment's own "
            "observations; write a function that encodes, and give FILE.py:FUNCTION."
        )
    return _greedy(load_policy(folder, env))


def _of_actors(folder: Path, env: gym.Env[Any, Any], closing: contextlib.ExitStack) -> Act:
    policy = load_actors_policy(folder)
    space, wanted = env.observation_space, policy.spec.observation_shape
    if len(wanted) != 1 or not space.is_np_flattenable or gym.spaces.flatdim(space) != wanted[0]:
        raise ConfigError(
            f"the policy in {folder} acts on observations of the shape {wanted}, and those of the "
            f"environment are {space}. Expected one such row; name a policy for this environment."
        )
    if (folder / "config.yaml").is_file():
        # Only its settings are read: nothing that they name is imported.
        options = ACTORS.of(out=folder, resume=True, trust_run=True).env_kwargs
        if options.get("rescale_observations"):
            raise ConfigError(
                f"the policy in {folder} was trained with rescale_observations, which a capture "
                "does not do. Expected a policy of the environment's own observations; train one, "
                "or write a function that scales them, and give FILE.py:FUNCTION."
            )
    check_actions(env.action_space, policy.spec)
    player = closing.enter_context(Player(policy, env.action_space))
    return lambda observation: player.act(np.asarray(gym.spaces.flatten(space, observation)))


def _greedy(model: Any) -> Act:
    return lambda observation: model.predict(observation, deterministic=True)[0]


def _of_zip(path: Path, env: gym.Env[Any, Any]) -> Act:
    """Return the policy of an SB3 zip, built anew with the zip's weights."""
    try:
        with (
            open_to_read(path, MAX_WEIGHTS) as stream,
            open_archive(stream, MAX_WEIGHTS) as archive,
            tempfile.TemporaryDirectory() as scratch,
        ):
            data = json.loads(_member(archive, "data"))
            weights = Path(scratch) / "policy.pth"
            weights.write_bytes(_member(archive, "policy.pth"))
            state = read_weights(weights)
        kind = data["policy_class"]["__module__"]
        spaces = data["observation_space"], data["action_space"]
        network = data.get("policy_kwargs") or {}
        shapes = [dict(space).get("_shape") for space in spaces]
        if (
            not isinstance(kind, str)
            or not isinstance(network, dict)
            or not all(shape is None or isinstance(shape, list) for shape in shapes)
        ):
            raise ValueError("its spaces or its policy are not described by texts and tables")
        _check_asked(network, [tuple(tensor.shape) for tensor in state.values()])
    except (*DAMAGED, ModelCorruptError) as error:
        raise ModelCorruptError(
            f"--policy {path} cannot be read: {reason_of(error)}. Expected a zip that "
            "Stable-Baselines3 saved; save the model again."
        ) from error
    if kind not in _ALGORITHMS:
        raise ConfigError(
            f"--policy {path} has a policy of {kind}. Expected one of Stable-Baselines3's own, as "
            f"only plain data is read of a zip; {_ANEW}."
        )
    if (why := _scaled(path, data)) is not None:
        raise ConfigError(
            f"--policy {path} was trained with VecNormalize, as {why}, whose scales the zip does "
            "not hold. Expected a policy of the environment's own observations; write a function "
            "that scales them first, as docs/datasets.md shows, and give FILE.py:FUNCTION."
        )
    own = env.observation_space, env.action_space
    for name, saved, space in zip(("observations", "actions"), spaces, own, strict=True):
        if (other := _unlike(saved, space, limits=name == "actions")) is not None:
            raise ConfigError(
                f"the policy of {path} was trained with the {name} {other}, and those of the "
                f"environment are {space}. Expected the same; name a policy for this environment."
            )
    check_numbering(env.action_space)
    arguments: dict[str, Any] = {"policy_kwargs": _policy_kwargs(path, network)}
    algorithm = _ALGORITHMS[kind]
    arguments |= {"buffer_size": 1} if algorithm != "A2C" else {}
    arguments |= {"use_sde": True} if data.get("use_sde") else {}
    try:
        model = build_model(algorithm, env, arguments, seed=0)
    except ConfigError as error:  # it names options of a training
        raise ConfigError(
            f"the policy of {path} cannot be built here: {str(error).split(' Expected ')[0]} "
            f"Expected a network of Stable-Baselines3's own; {_ANEW}."
        ) from error
    try:
        model.policy.load_state_dict(state)
    except DAMAGED as error:
        raise ConfigError(
            f"the weights of {path} do not fit {algorithm} in this environment: "
            f"{reason_of(error)}. Expected a policy trained with these observations and actions; "
            f"name one, or {_ANEW}."
        ) from error
    return _greedy(model)


def _member(archive: zipfile.ZipFile, name: str) -> bytes:
    member = archive.getinfo(name)
    with archive.open(member) as stream:  # of a size given, zipfile unpacks no more
        return stream.read(member.file_size)


def _scaled(path: Path, data: Mapping[str, Any]) -> str | None:
    """Return what says that SB3's ``VecNormalize`` scaled the observations of a training."""
    on_policy = data["policy_class"]["__module__"] == "stable_baselines3.common.policies"
    # SAC, TD3 and DQN keep the last observation unscaled in any case.
    if on_policy and data.get("_last_original_obs") is not None:
        return "it keeps an unscaled observation"
    for folder in (path.parent, path.with_suffix("")):  # RL Zoo has the latter
        if (found := next(folder.glob("*vecnormalize*.pkl"), None)) is not None:
            return f"{found} is beside it"
    return None


def _unlike(saved: Mapping[str, Any], space: gym.Space[Any], *, limits: bool) -> str | None:
    """Return, in words, the space that a zip was saved with, if it differs from another."""
    kind = str(saved.get(":type:")).removesuffix("'>").rpartition(".")[2]
    if kind != type(space).__name__:
        return kind
    if isinstance(space, gym.spaces.Discrete) and str(saved.get("n")) != str(space.n):
        return f"Discrete({saved.get('n')})"
    if not isinstance(space, gym.spaces.Box):
        return None
    shape = tuple(saved.get("_shape") or ())
    # SB3 moves the channels of images to the front.
    if shape != space.shape and not (len(shape) == 3 and (*shape[1:], shape[0]) == space.shape):
        return f"{kind} of the shape {shape}"
    for name, own in (("low", space.low), ("high", space.high)) if limits else ():
        words = re.sub(r"[\[\]]", " ", str(saved.get(name))).split()
        with contextlib.suppress(ValueError):  # long ones are cut off by "..."
            recorded = np.array(words, dtype=np.float64)
            if len(recorded) == own.size and not np.allclose(recorded, own.ravel(), rtol=1e-4):
                return f"{kind} with {name} {saved.get(name)}"
    return None


def _check_asked(arguments: Mapping[str, Any], shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise ValueError if a network is described that these shapes of weights are not of.

    It is built before the weights are compared: a few bytes could ask for gigabytes, or for hours.
    """
    rows = {shape[0] for shape in shapes if shape}
    waiting: list[tuple[str, Any]] = list(arguments.items())
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, dict):
            waiting += [(name if name == "net_arch" else key, each) for key, each in value.items()]
        elif isinstance(value, list):
            waiting += [(name, each) for each in value]
            layers = [each for each in value if type(each) is int]
            if len(value) > len(shapes) or not set(pairwise(layers)) <= {
                (shape[1], shape[0]) for shape in shapes if len(shape) == 2
            }:
                raise ValueError(f"its weights are not of the layers in {shown_name(name)}")
        elif type(value) is int and not (value <= len(shapes) or value in rows):
            raise ValueError(f"its weights are not of {shown_name(name)} {value}")
        if name == "n_critics" and not (type(value) is int and value <= len(shapes)):
            raise ValueError(f"its weights are not of so many {name}")


def _policy_kwargs(path: Path, saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a network as a zip has them in plain text."""
    arguments: dict[str, Any] = {}
    for name, value in saved.items():
        if name in (":type:", ":serialized:") or name.startswith("optimizer_"):
            continue
        if isinstance(value, str) and value.startswith("<"):
            arguments[name] = _known_class(value)
        elif isinstance(value, _PLAIN):
            arguments[name] = value
        if arguments.get(name) is None and value is not None:
            raise ConfigError(
                f"the policy of {path} has a network with {name}={str(value)[:100]}. Expected "
                "classes of torch.nn or of Stable-Baselines3, as only plain data is read of a "
                f"zip; {_ANEW}."
            )
    return arguments


def _known_class(text: str) -> Any:
    """Return a class of torch.nn or of SB3's extractors by its printed name; None if no other."""
    from stable_baselines3.common import torch_layers
    from torch import nn

    place, _, name = text.removeprefix("<class '").removesuffix("'>").rpartition(".")
    home = nn if place.startswith("torch.nn.modules.") else torch_layers
    known = place.startswith("torch.nn.modules.") or place == torch_layers.__name__
    found = getattr(home, name, None) if known else None
    return found if isinstance(found, type) else None
