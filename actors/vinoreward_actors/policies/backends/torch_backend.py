"""Eager PyTorch, as in the papers' actors; a baseline for benchmarks.

The only backend that imports torch, when it is created.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import needed_for
from vinoreward_actors.policies.backends.base import Infer, PolicyBackend
from vinoreward_actors.policies.policy import ActivationRange, Floats, Policy, int8_layers

if TYPE_CHECKING:
    from torch import Tensor

    from vinoreward_actors.policies.torch_policy import TorchPolicy


class TorchBackend(PolicyBackend):
    """Runs a policy as the learner's module; copies weights into it.

    Autograd stays on and records an unused graph, as in the published actors. INT8 layers round as
    on other backends but compute in floats. Sets torch to one thread for the whole process.
    """

    name: ClassVar[str] = "torch"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        with needed_for("the torch backend", "train"):
            import torch
        self._torch = torch
        self._module: TorchPolicy | None = None
        self._key: object = None
        if torch.get_num_threads() != 1:
            torch.set_num_threads(1)

    def _load(self, policy: Policy) -> Infer:
        from vinoreward_actors.policies.torch_policy import TorchPolicy, load_policy

        bounds = {name: policy.ranges[name] for name in int8_layers(policy)}
        key = (policy.spec, tuple(bounds.items()))
        if self._module is None or key != self._key:
            self._module, self._key = TorchPolicy(policy.spec, initialise=False), key
            for name, each in bounds.items():
                rounding = functools.partial(_rounded, each)
                self._module.get_submodule(name).register_forward_pre_hook(rounding)
        load_policy(self._module, policy)
        return functools.partial(self._run, self._module)

    def _run(self, module: TorchPolicy, observations: npt.NDArray[Any]) -> Floats:
        seen = self._torch.from_numpy(np.require(observations, requirements=["C", "W"]))
        return np.asarray(module.outputs(module.features(seen)).detach().numpy())

    def _unload(self) -> None:
        self._module = None


def _rounded(bounds: ActivationRange, _: object, inputs: tuple[Tensor, ...]) -> Tensor:
    """Return a layer's input, rounded to the levels of a range."""
    levels = ((inputs[0].clamp(bounds.low, bounds.high) - bounds.low) / bounds.step).round()
    return levels * bounds.step + bounds.low
