"""The ONNX Runtime backend: the fastest for small networks."""

from __future__ import annotations

import importlib
import json
import re
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, OutputError, needed_for
from vinoreward.policies.backends.base import (
    ALIGNMENT,
    Infer,
    PolicyBackend,
    describes,
    seal,
    unseal,
)
from vinoreward.policies.backends.int8 import int8_layers, weight_count
from vinoreward.policies.backends.onnx_graph import (
    RESULT,
    SOURCE,
    int8_arrays,
    policy_model,
    shape_of,
    weights_of,
)
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.spec import Dense

Array = npt.NDArray[Any]
CONSTANTS = 1_000_000
"""With several observations, INT8 weights from this count on are constants of the session, because
only constants are prepacked. With one observation, weights as inputs cost 0.23 instead of 0.14 ms a
call for 3x2048, and save a session of 45 ms at every refresh."""
SMALLEST = 1_000_000
"""Dense INT8 weights from which a blob saves time: below it, checking the blob takes as long as
transposing the weights. Convolutions save nothing."""

_TABLE = re.compile(rb"[^\n]*\n")


class ONNXRuntimeBackend(PolicyBackend):
    """Runs a policy in one session whose inputs and output are bound once.

    Weights are inputs: a refresh binds the policy's arrays. Large INT8 weights are transposed
    first, unless ``policy.blob`` has them transposed; for several observations they are constants
    of a new session. Quantized weights of float layers are dequantized at the refresh.

    Raises:
        MissingExtraError: onnxruntime is not installed.
    """

    name: ClassVar[str] = "onnxruntime"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        with needed_for("the onnxruntime backend", "onnxruntime"):
            import onnxruntime

            failures: Any = importlib.import_module("onnxruntime.capi.onnxruntime_pybind11_state")
        self._library = onnxruntime
        self._failures = (failures.Fail, failures.RuntimeException, failures.InvalidArgument)
        self._refusals = (
            *self._failures,
            failures.InvalidProtobuf,
            failures.InvalidGraph,
            failures.NotImplemented,
        )
        self._session: Any = None
        self._binding: Any = None
        self._key: object = None
        self._bound: dict[str, Array] = {}

    def blob(self, policy: Policy) -> bytes | None:
        """Return large INT8 weights in ONNX Runtime's layout, for any batch and processor."""
        return write_blob(policy)

    def _load(self, policy: Policy) -> Infer:
        whole = weight_count(policy.spec, int8_layers(policy))
        constants = self.batch > 1 and whole >= CONSTANTS
        key = (policy.spec, shape_of(policy), constants)
        weights = weights_of(policy, read_blob(policy))
        if constants or self._session is None or key != self._key:
            self._key = None
            self._open(policy_model(policy, self.batch, weights, constants=constants), policy)
            self._key = key
        bound = {} if constants else weights
        for name, array in bound.items():
            self._bind(name, array)
        # Release the previous weights only now: their memory may be reused from here on.
        self._bound = bound
        return self._run

    def _open(self, model: bytes, policy: Policy) -> None:
        options = self._library.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4  # failures are raised as exceptions
        try:
            self._session = self._library.InferenceSession(
                model, options, providers=["CPUExecutionProvider"]
            )
        except self._refusals as error:
            raise ConfigError(
                "ONNX Runtime cannot open the policy. Expected a network that it supports; use "
                f"backend='numpy', and report this. The reason it gives: {error}"
            ) from error
        spec = policy.spec
        self._binding = self._session.io_binding()
        self._source = np.zeros((self.batch, *spec.observation_shape), spec.observation_dtype)
        self._result = np.zeros((self.batch, spec.outputs), dtype=np.float32)
        self._bind(SOURCE, self._source)
        self._binding.bind_output(
            RESULT, "cpu", 0, np.float32, self._result.shape, self._result.ctypes.data
        )

    def _bind(self, name: str, array: Array) -> None:
        # Binds the address without a copy, so the array must stay alive.
        self._binding.bind_input(name, "cpu", 0, array.dtype, array.shape, array.ctypes.data)

    def _run(self, observations: npt.NDArray[Any]) -> Floats:
        np.copyto(self._source, observations)
        try:
            self._session.run_with_iobinding(self._binding)
        except self._failures as error:
            raise OutputError(
                "ONNX Runtime failed to run the policy. Expected outputs; the reason it gives: "
                f"{error}"
            ) from error
        return self._result.copy()

    def _unload(self) -> None:
        self._session = self._binding = self._key = None
        self._bound = {}


def write_blob(policy: Policy) -> bytes | None:
    """Return INT8 weights in ONNX Runtime's layout; None where that does not pay.

    Transposing 8 million weights takes an actor 25 ms at every refresh; reading them here, 4 ms.
    """
    int8 = int8_layers(policy)
    dense = (one.name for one in policy.spec.weighted if isinstance(one, Dense))
    if weight_count(policy.spec, tuple(name for name in dense if name in int8)) < SMALLEST:
        return None
    table, parts, end = [], [], 0
    for name, array in int8_arrays(policy).items():
        gap = -end % ALIGNMENT
        table.append([name, array.dtype.name, list(array.shape), end + gap])
        parts += [b"\0" * gap, array.tobytes()]
        end += gap + array.nbytes
    start = json.dumps(table).encode() + b"\n"
    start = b" " * (-len(start) % ALIGNMENT) + start
    return seal(describes(policy, "onnxruntime"), start + b"".join(parts))


def read_blob(policy: Policy) -> dict[str, npt.NDArray[Any]] | None:
    """Return the arrays of a policy's blob as views, or None if the blob does not fit."""
    if policy.blob is None:
        return None
    payload = unseal(policy.blob, describes(policy, "onnxruntime"))
    if payload is None:
        return None
    table = _TABLE.match(payload)
    if table is None:
        return None
    found: dict[str, npt.NDArray[Any]] = {}
    for name, dtype, shape, offset in json.loads(table[0]):
        whole = np.frombuffer(payload, dtype, int(np.prod(shape)), table.end() + offset)
        found[name] = whole.reshape(shape)
    return found
