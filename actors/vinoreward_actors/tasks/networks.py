"""The papers' networks, by name, fitted to a task and an algorithm.

ActorQ: three layers of 2048 with tanh between them (its published learner's activation; the text
does not name one). AcceRL, table 6: an Atari network, Original, and three that are smaller. The
usual two layers of 256, and the network of Mnih et al. 2015, for comparison.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from vinoreward.errors import ConfigError
from vinoreward_actors.policies.spec import (
    Activation,
    Conv,
    Dense,
    Flatten,
    Head,
    Layer,
    PolicySpec,
    mlp,
)
from vinoreward_actors.tasks.lookup import IMAGE_CURE, Task, find_task

IMAGE = (4, 84, 84)
# Layers as (channels, kernel, stride), then the width of the dense layer. The table gives kernels
# and no strides: those are Mnih et al.'s for the same kernels.
_CONVOLUTIONAL: Mapping[str, tuple[tuple[tuple[int, int, int], ...], int]] = MappingProxyType(
    {
        "original": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 2048),
        "net1": (((16, 8, 4), (32, 4, 2)), 256),
        "net2": (((8, 8, 4), (16, 4, 2)), 128),
        "net3": (((4, 8, 4), (4, 4, 2)), 32),
        "nature": (((32, 8, 4), (64, 4, 2), (64, 3, 1)), 512),
    }
)
NETWORKS = ("3x2048", "2x256", *_CONVOLUTIONAL)
"""Names of networks; any other DEPTHxWIDTH is one too."""


def network(
    task: Task | str,
    name: str | None = None,
    algorithm: str = "impala",
) -> PolicySpec:
    """Return the policy network of a task, with the head that an algorithm needs.

    Args:
        task: a task, its name, or the id of a Gymnasium environment.
        name: one of :data:`NETWORKS`, or any DEPTHxWIDTH; None is the task's own.
        algorithm: ``impala``, ``dqn``, ``d4pg``, or a learner of another package.
    """
    task = find_task(task) if isinstance(task, str) else task
    name = task.network if name is None else name
    head = _head(task, algorithm)
    value = algorithm == "impala"
    if name in _CONVOLUTIONAL:
        return _convolutional(task, name, head, value)
    dense = _dense_layers(name)
    if dense is None:
        raise ConfigError(
            f"no network {name!r}. Expected one of: {', '.join(NETWORKS)}; or another DEPTHxWIDTH, "
            "such as 2x64."
        )
    if len(task.observation_shape) != 1:
        raise ConfigError(
            f"the network {name} was asked for on {task.name}, whose observations are "
            f"{task.observation_shape} images. Expected one of: {', '.join(_CONVOLUTIONAL)}."
        )
    hidden, activation = dense
    return mlp(
        task.observation_shape[0],
        task.actions,
        head=head,
        hidden=hidden,
        activation=activation,
        value=value,
    )


def _dense_layers(name: str) -> tuple[tuple[int, ...], Activation] | None:
    """Return the widths and the activation of a name such as 2x64; None if it is no such name.

    The activation is tanh for 3x2048, as in ActorQ, and relu for all others.
    """
    size = re.fullmatch(r"([1-9])x([1-9]\d{0,4})", name)
    if size is None:
        return None
    return (int(size[2]),) * int(size[1]), "tanh" if name == "3x2048" else "relu"


def _head(task: Task, algorithm: str) -> Head:
    """Return the head for a task's actions that an algorithm can train."""
    from vinoreward_actors.actor_learner.learners.base import LEARNERS

    def fitting(name: str) -> list[Head]:
        heads = LEARNERS.find(name).heads
        return [head for head in heads if (head in ("logits", "q")) == task.discrete]

    found = fitting(algorithm)
    if not found:
        raise ConfigError(
            f"{algorithm} was asked for on {task.name}, whose actions are "
            f"{'numbered' if task.discrete else 'continuous'}. Expected one of: "
            f"{', '.join(name for name in LEARNERS.names() if fitting(name))}."
        )
    return found[0]


def _convolutional(task: Task, name: str, head: Head, value: bool) -> PolicySpec:
    if task.observation_shape != IMAGE:
        cure = IMAGE_CURE if len(task.observation_shape) == 3 else "name a DEPTHxWIDTH network"
        raise ConfigError(
            f"the network {name} was asked for on {task.name}, whose observations have the shape "
            f"{task.observation_shape}. Expected {IMAGE} images; {cure}."
        )
    convolutions, dense = _CONVOLUTIONAL[name]
    layers: list[Layer] = []
    channels, _, side = IMAGE
    for number, (outputs, kernel, stride) in enumerate(convolutions):
        layers.append(Conv(f"conv{number}", channels, outputs, kernel, stride))
        channels, side = outputs, (side - kernel) // stride + 1
    outputs = task.actions * (2 if head == "tanh_gaussian" else 1)
    layers += [
        Flatten(),
        Dense("dense0", channels * side**2, dense, "relu"),
        Dense("head", dense, outputs),
    ]
    return PolicySpec(
        observation_shape=IMAGE,
        layers=tuple(layers),
        head=head,
        actions=task.actions,
        value=Dense("value", dense, 1) if value else None,
        observation_dtype="uint8",
        scale=1 / 255,
    )
