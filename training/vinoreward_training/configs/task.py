"""What all commands of a chain know: the environment, its truth, its images and its reward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from annotated_types import Ge, Gt, Le, Lt

from vinoreward.rewards.decision import OodAction, RewardMode

RUNS_CODE: Final = "its module is imported"
"""Marks options that may name code; what a file names there is run only if the user agrees."""
Scalar = bool | int | float | str


@dataclass(frozen=True)
class _AnyValues:
    """Lets a table hold lists and tables: a file's, or those that a command line writes as text."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema())


Arguments = Annotated[dict[str, Scalar], _AnyValues()]
"""Arguments of an environment or algorithm: a table of names and values."""
Count = Annotated[int, Ge(1), Le(10**12)]
"""A number of things of which there is at least one; more than the limit is a typo."""
Seed = Annotated[int, Ge(0), Lt(2**32)]
"""NumPy and Stable-Baselines3 accept no larger ones."""
Threads = Annotated[int, Ge(1), Le(1000)]
Share = Annotated[float, Gt(0), Le(1)]


@dataclass(frozen=True, kw_only=True)
class Task:
    """An environment, what it shows and how its success is known.

    A capture records it in its dataset, a classifier in its bundle, a training in its run.
    """

    env: Annotated[str, RUNS_CODE] = "PandaHover-v0"
    """Gymnasium id; package:Id-v0 imports the package first."""
    env_kwargs: Arguments = field(default_factory=dict)
    """Arguments of the environment: name value name value ... A value may be a list or a table, as
    in "{'distance': 1.2}"; max_episode_steps is one of any environment's."""
    truth: Annotated[str | None, RUNS_CODE] = None
    """How the true success is known: a key of info, or a function of the environment inside all
    wrappers, as package.module:function or file.py:function. None: the first of true_success, the
    environment's own is_success, success and succeed that is there."""
    image_source: tuple[str, ...] = ()
    """Where the images are: render, obs (the observation) or obs:KEY (one entry of it); for several
    cameras one for each. None: as the bundle was trained, else render."""


@dataclass(frozen=True, kw_only=True)
class RewardedTask(Task):
    """A task with the reward that a policy gets and the observation that it sees."""

    backend: str = "openvino"
    """Backend of the networks: openvino, onnxruntime, torch; oracle pays the truth instead."""
    bundle: str | None = None
    """Classifier: a bundle's name or folder, a run of finetune, or hf:OWNER/NAME on the Hugging
    Face Hub. None: the environment's own, or its own reward."""
    precision: str = "auto"
    """fp32, int8, or auto: INT8 if the bundle's gate passed."""
    reward_mode: RewardMode = "sparse"
    """What a step pays. sparse: --success-reward or --step-reward; progress: that and a shaping by
    the progress of a bundle of finetune --progress, which keeps the best policy; potential: the
    same by the probability. probability and log_odds pay the network's number at every step, so a
    claimed success does not end the episode."""
    hold: Count = 1
    """Steps in a row that must look like success before it is claimed. Above 1, an observation of
    one row gets the number of such steps appended, in environments that are not ours."""
    on_ood: OodAction = "withhold"
    """What becomes of an image out of distribution, if the bundle has a guard: it does not count
    (withhold), a warning, an error, or ignore: nothing looks for it."""
    success_reward: float = 100.0
    """Reward of a claimed success, in environments that are not ours. SAC also maximises entropy:
    compared with it, a success worth 1 may be too little to end an episode for."""
    step_reward: float = -1.0
    """Reward of any other step."""
    accept_foreign_images: bool = False
    """Use a bundle that does not record the source of its training images: its claims may mean
    nothing here."""
    encoder: str | None = None
    """Name or folder of an encoder's bundle: the policy gets its latent instead of the image."""
