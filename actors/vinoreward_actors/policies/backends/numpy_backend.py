"""The NumPy backend: for small networks, and machines without another library.

Matrix products use as many threads as the BLAS was set to before NumPy was imported: start actors
with ``OMP_NUM_THREADS=1``.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward_actors.policies.backends.base import Infer, PolicyBackend
from vinoreward_actors.policies.policy import Floats, Policy, run


class NumpyBackend(PolicyBackend):
    """Runs a policy by the reference, with its weights dequantized once.

    INT8 layers round as on other backends but compute in floats: NumPy has no fast product of
    bytes. The result is exact, but not faster.
    """

    name: ClassVar[str] = "numpy"

    def _load(self, policy: Policy) -> Infer:
        parameters = policy.float_parameters()

        def infer(observations: npt.NDArray[Any]) -> Floats:
            # The check of the outputs reports overflows; a warning would say less.
            with np.errstate(over="ignore", invalid="ignore"):
                return run(policy, parameters, observations)[0]

        return infer
