"""SB3 models built from plain data, their checkpoints and policies, without SB3's pickles.

SB3's own ``save`` keeps attributes as pickled bytes and its replay buffer as one pickle: reading
either runs whatever code the file holds. Here a checkpoint is tensors, numbers and text in one
file, see :mod:`vinoreward.files`.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import gymnasium as gym
import numpy as np

from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError, needed_for
from vinoreward.files import check_names, read_json, save_state, write_json
from vinoreward.wrappers.sources import parts_below
from vinoreward_training.configs import TrainConfig
from vinoreward_training.runs.next_command import recorded, resume_command
from vinoreward_training.runs.run_folder import read_tensors
from vinoreward_training.runs.settings import checked
from vinoreward_training.tasks.trust import trust_args

if TYPE_CHECKING:
    from stable_baselines3.common.base_class import BaseAlgorithm
    from stable_baselines3.common.vec_env import VecEnv

ALGORITHMS = ("SAC", "TD3", "DDPG", "DQN", "PPO", "A2C")
OFF_POLICY = ("SAC", "TD3", "DDPG", "DQN")
_COUNTERS = ("_n_updates", "_episode_num", "_n_calls", "postponed")
_REPLAY = (
    "observations", "next_observations", "actions", "rewards", "dones", "timeouts", "terminated",
)  # fmt: skip


def algorithm_class(name: str | None) -> type[BaseAlgorithm]:
    """Return SB3's class of that name, one of :data:`ALGORITHMS`."""
    if name not in ALGORITHMS:
        raise ConfigError(field="algorithm", value=name, expected=f"one of {', '.join(ALGORITHMS)}")
    with needed_for("training", "train"):
        import stable_baselines3
    algorithm: type[BaseAlgorithm] = getattr(stable_baselines3, name)
    return algorithm


def suited_algorithms(actions: gym.Space[Any]) -> tuple[str, ...]:
    """Return SB3's algorithms for an action space, the one to try first first."""
    if isinstance(actions, gym.spaces.Box):
        return ("SAC", "TD3", "DDPG", "PPO", "A2C")
    return (*(("DQN",) if isinstance(actions, gym.spaces.Discrete) else ()), "PPO", "A2C")


def check_numbering(actions: gym.Space[Any]) -> None:
    """Raise ConfigError for integer actions that begin elsewhere than at 0.

    Stable-Baselines3 would play them by wrong numbers.
    """
    if isinstance(actions, gym.spaces.Discrete) and actions.start != 0:
        start, space = int(actions.start), f"Discrete({actions.n})"
    elif isinstance(actions, gym.spaces.MultiDiscrete) and actions.start.any():
        start, space = actions.start.tolist(), f"MultiDiscrete({actions.nvec.tolist()})"
    else:
        return
    raise ConfigError(
        f"the environment's actions are {actions}, and Stable-Baselines3 counts from 0. Expected "
        "integers from 0; convert them with gymnasium.wrappers.TransformAction(env, lambda action: "
        f"action + {start}, gymnasium.spaces.{space}), in a function that `env` names."
    )


def build_model(
    algorithm: str | None,
    env: gym.Env[Any, Any] | VecEnv,
    arguments: Mapping[str, Any],
    *,
    seed: int,
    device: str = "cpu",
    replay_size: int | None = None,
    learner: str = "sb3",
) -> BaseAlgorithm:
    """Build an untrained SB3 model; ConfigError if it cannot learn in this environment.

    Args:
        algorithm: one of :data:`ALGORITHMS`. In a batch, off-policy ones train while it steps.
        env: one environment or several. With N of them off-policy algorithms make N gradient steps
            where they would make one, unless ``gradient_steps`` is given.
        arguments: the algorithm's, as YAML holds them; ``policy`` may name SB3's policy, and
            ``action_noise`` may be a standard deviation.
        seed: of weights and exploration.
        device: torch's.
        replay_size: capacity of the replay unless ``buffer_size`` is given: SB3's default of a
            million transitions is slow to allocate.
        learner: what trains, as in ``TrainConfig``.
    """
    check_numbering(env.action_space)
    kind: Any = algorithm_class(algorithm)
    # A deep copy: SB3 writes into policy_kwargs.
    given: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in copy.deepcopy(dict(arguments)).items()
    }
    if learner == "fused":
        from vinoreward_training.policy.fused_sac import FusedSAC

        kind = FusedSAC
    elif learner == "skrl":
        from vinoreward_training.policy.skrl_ppo import SkrlPPO

        kind = SkrlPPO
    if algorithm in OFF_POLICY:
        from vinoreward_training.sb3 import BatchedVecEnv, OverlappedTraining

        if isinstance(env.unwrapped, BatchedVecEnv):
            kind = OverlappedTraining.of(kind)
    policy = given.pop("policy", None) or policy_for(env.observation_space)
    if isinstance(noise := given.get("action_noise"), int | float):
        from stable_baselines3.common.noise import NormalActionNoise

        shape = env.action_space.shape or ()
        given["action_noise"] = NormalActionNoise(np.zeros(shape), np.full(shape, float(noise)))
    _check_simple(kind, algorithm, given)
    if algorithm in OFF_POLICY and replay_size is not None:
        given.setdefault("buffer_size", replay_size)
    if algorithm in OFF_POLICY and (together := getattr(env, "num_envs", 1)) > 1:
        given.setdefault("gradient_steps", together)
    try:
        model: BaseAlgorithm = kind(policy, env, seed=seed, device=device, **given)
        return model
    except (
        TypeError, ValueError, AssertionError, LookupError, AttributeError, ArithmeticError,
        RuntimeError, MemoryError,
    ) as error:  # fmt: skip
        raise ConfigError(
            f"{algorithm} cannot be set up for this environment: {error}. Expected arguments and "
            "spaces that Stable-Baselines3 documents for it; change `algorithm` or "
            "`algorithm_kwargs`.",
            field="algorithm_kwargs",
        ) from error


def _check_simple(kind: Any, algorithm: str | None, given: Mapping[str, Any]) -> None:
    """Raise ConfigError for a number, flag or text of a wrong type: SB3 would fail later."""
    hints = kind.__init__.__annotations__
    for name, value in given.items():
        kinds = get_args(hints.get(name)) or (hints.get(name),)
        if not set(kinds) <= {bool, int, float, str, type(None)}:
            continue  # tables, and what takes several forms
        allowed = {*kinds, int} if float in kinds else set(kinds)
        if type(value) not in allowed:
            names = " or ".join(sorted(each.__name__ for each in kinds))
            raise ConfigError(
                field="algorithm_kwargs",
                value={name: value},
                expected=f"{names} for {algorithm}'s {name}",
            )


def policy_for(space: gym.Space[Any]) -> str:
    """Return the name of SB3's policy for an observation space: images need convolutions.

    ConfigError for one with text, or anything else that has no array of one shape.
    """
    for name, part in parts_below(space).items():
        if part.shape is None:
            entry = f"the entry {name!r} of the observation" if name else "the observation"
            raise ConfigError(
                f"{entry} is {part}. Expected numbers or an image of one shape, as SB3's networks "
                "take no text; wrap the environment so that it leaves this out or encodes it "
                "(gymnasium.wrappers.FilterObservation, TransformObservation)."
            )
    if isinstance(space, gym.spaces.Dict):
        return "MultiInputPolicy"
    return "CnnPolicy" if space.shape is not None and len(space.shape) == 3 else "MlpPolicy"


def discount(algorithm_kwargs: Mapping[str, Any]) -> float:
    """Return the learner's discount; SB3's default is the same for all of :data:`ALGORITHMS`."""
    gamma = algorithm_kwargs.get("gamma")
    return float(gamma) if isinstance(gamma, int | float) else 0.99


def save_checkpoint(
    path: Path, model: BaseAlgorithm, clock: tuple[float, float] = (0.0, 0.0)
) -> None:
    """Write everything that training needs to continue, as one file (atomically).

    Call it between rollouts: within one, the newest transition is not in the buffer yet. ``clock``
    is the seconds of training and of evaluating so far.
    """
    import torch

    names = model._get_torch_save_params()[1]
    variables = {name: getattr(model, name) for name in names}
    state: dict[str, Any] = {
        "kind": type(model).__name__,
        "parameters": model.get_parameters(),
        "variables": {k: v.detach() for k, v in variables.items() if v is not None},
        "num_timesteps": model.num_timesteps,
        "counters": {name: int(getattr(model, name)) for name in _COUNTERS if hasattr(model, name)},
        "torch_rng": torch.get_rng_state(),
        "cuda_rng": torch.cuda.get_rng_state(model.device) if _on_cuda(model) else None,
        "rng": json.dumps(_rng_state(model)),
        "replay": _replay_state(model),
        "clock": list(clock),
    }
    save_state(path, state)


def restore_checkpoint(path: Path, model: BaseAlgorithm) -> tuple[float, float]:
    """Restore a new model from a checkpoint, at a new episode; return the clock."""
    import torch

    state = read_tensors(path)
    try:
        if state["kind"] != type(model).__name__:
            raise ValueError(f"it is of {state['kind']}, not {type(model).__name__}")
        parameters, variables = model._get_torch_save_params()
        check_names(state, parameters=parameters, variables=variables, counters=_COUNTERS)
        model.num_timesteps = int(state["num_timesteps"])
        for name, count in state["counters"].items():
            setattr(model, name, int(count))
        model.set_parameters(state["parameters"], device=model.device)
        for name, value in state["variables"].items():
            getattr(model, name).data.copy_(value)
        if state["replay"]:
            _restore_replay(model, state["replay"])
        torch.set_rng_state(state["torch_rng"])
        if _on_cuda(model) and state["cuda_rng"] is not None:
            torch.cuda.set_rng_state(state["cuda_rng"], model.device)
        _restore_rng(model, json.loads(state["rng"]))
        training, evaluating = state["clock"]
        return float(training), float(evaluating)
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ModelCorruptError(
            f"the checkpoint {path} does not fit: {error}. Expected one of the same algorithm, "
            "network and environment; resume with the configuration it was trained with."
        ) from error


def _on_cuda(model: BaseAlgorithm) -> bool:
    return bool(model.device.type == "cuda")


def _replay_state(model: BaseAlgorithm) -> dict[str, Any]:
    import torch

    buffer = getattr(model, "replay_buffer", None)
    if buffer is None:
        return {}
    size = buffer.size()
    # Oldest first, so that a buffer of another capacity takes them as well.
    order = (np.arange(size) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    arrays: dict[str, Any] = {}
    for name in _REPLAY:
        values = getattr(buffer, name, None)
        if isinstance(values, dict):
            arrays[name] = {k: torch.from_numpy(v[order]) for k, v in values.items()}
        elif values is not None:
            arrays[name] = torch.as_tensor(values)[order].cpu()
    return arrays


def _restore_replay(model: BaseAlgorithm, arrays: Mapping[str, Any]) -> None:
    import torch

    buffer: Any = model.replay_buffer  # type: ignore[attr-defined]
    size = len(arrays["rewards"])
    count = min(size, buffer.buffer_size)
    for name, values in arrays.items():
        target = getattr(buffer, name)
        pairs = (
            [(target[key], values[key]) for key in target]
            if isinstance(target, dict)
            else [(target, values)]
        )
        for into, tensor in pairs:
            torch.as_tensor(into)[:count] = tensor[size - count :]
    buffer.pos = count % buffer.buffer_size
    buffer.full = count == buffer.buffer_size


def _state_of(generator: Any) -> dict[str, Any]:
    """Return a generator's state as plain data; dm_control's are legacy ones, as NumPy's own is."""
    if isinstance(generator, np.random.Generator):
        return dict(generator.bit_generator.state)
    state = generator.get_state(legacy=False)
    return {**state, "state": {**state["state"], "key": state["state"]["key"].tolist()}}


def _set_state(generator: Any, state: Mapping[str, Any]) -> None:
    """Set a generator to what :func:`_state_of` returned."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
        return
    keys = np.array(state["state"]["key"], dtype=np.uint32)
    generator.set_state({**state, "state": {**state["state"], "key": keys}})


def _of_environments(model: BaseAlgorithm) -> dict[str, Any]:
    """Return the environments' generators; those of other processes are copies, if they live."""
    env = model.get_env()
    found: list[Any] = []
    with contextlib.suppress(EOFError, OSError):
        found = [] if env is None else env.get_attr("np_random")
    return {"env" if i == 0 else f"env{i}": generator for i, generator in enumerate(found)}


def _rng_state(model: BaseAlgorithm) -> dict[str, Any]:
    version, internal, following = random.getstate()
    generators = {"action_space": model.action_space.np_random, **_of_environments(model)}
    return {
        "numpy": _state_of(np.random),
        "python": [version, list(internal), following],
        "generators": {name: _state_of(one) for name, one in generators.items()},
    }


def _restore_rng(model: BaseAlgorithm, state: Mapping[str, Any]) -> None:
    _set_state(np.random, state["numpy"])
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
    env = model.get_env()
    if env is not None:
        # Building the model requested a seeded reset, which would repeat the first episodes.
        env.unwrapped._reset_seeds()
    states = state["generators"]
    _set_state(model.action_space.np_random, states["action_space"])
    for i, (key, generator) in enumerate(_of_environments(model).items()):
        if env is not None and key in states:
            _set_state(generator, states[key])
            env.set_attr("np_random", generator, indices=[i])


def save_policy(folder: Path, model: BaseAlgorithm, description: Mapping[str, Any]) -> None:
    """Write ``policy.pt`` (tensors) and ``policy.json`` (how to build the network and the env)."""
    save_state(folder / "policy.pt", model.policy.state_dict())
    write_json(folder / "policy.json", {"schema_version": 1, **description})


def resume_train(folder: Path, env: str | None, truth: str | None) -> str:
    """Return the command that continues a stopped training."""
    return resume_command("train", folder, *trust_args(env), *trust_args(truth, "--truth"))


def read_description(folder: Path) -> TrainConfig:
    """Read ``policy.json``: the settings of the training that concern its policy."""
    path = folder / "policy.json"
    if not path.exists():
        known = recorded(folder)
        # Stopped before its first checkpoint it has settings; an algorithm is a training's alone.
        if "algorithm" in known or (folder / "checkpoint.pt").is_file():
            again = resume_train(folder, known.get("env"), known.get("truth"))
            raise ModelNotFoundError(
                f"the training in {folder} was stopped before it wrote a policy. Expected one that "
                f"has ended; continue with: {again}"
            )
        raise ModelNotFoundError(
            f"no policy in {folder}. Expected a folder that vinoreward train or vinoreward actors "
            "wrote; train first, or name the folder with `run`."
        )
    try:
        description = read_json(path)
        if not isinstance(description, dict) or description.pop("schema_version", None) != 1:
            raise ConfigError("it is not of schema version 1")
        return checked(TrainConfig, description)
    except (OSError, ValueError) as error:
        raise ModelCorruptError(
            f"{path} cannot be read: {error}. Expected what vinoreward train writes of a policy; "
            "restore the file or train again."
        ) from error


def load_policy(folder: Path, env: gym.Env[Any, Any]) -> BaseAlgorithm:
    """Load the policy of a run folder for an environment with the spaces it was trained on."""
    description = read_description(folder)
    state = read_tensors(folder / "policy.pt")
    arguments = {**description.algorithm_kwargs}
    if description.algorithm in OFF_POLICY:
        arguments["buffer_size"] = 1
    elif description.algorithm == "PPO":
        arguments |= {"n_steps": 2, "batch_size": 2}  # it learns nothing more
    model = build_model(description.algorithm, env, arguments, seed=0)
    try:
        model.policy.load_state_dict(state)
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise ModelCorruptError(
            f"the policy in {folder} does not fit: {error}. Expected an environment with the "
            "spaces it was trained on; leave `env` out to play it where it was trained."
        ) from error
    return model
