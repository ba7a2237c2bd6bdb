"""Files of strangers, tried once in a process with limits: networks, and weights of ``torch.save``.

Both are programs: a few hundred bytes can ask for a terabyte or for a year. So a child process
does what we would do, and only what it survives is done here. It checks an ONNX file's operators,
loads the network in the runtime that will be used and runs it on a blank image and on the bundle's
golden images. That a network passed is remembered in ``$XDG_CACHE_HOME/vinoreward/networks``
(``~/.cache``), by SHA-256 of everything that it depends on.

Limits, on Linux: 896 MiB of memory beyond the imported libraries, and six times the file's own size
(``RLIMIT_DATA``, and ``RLIMIT_AS`` where there is ``/proc``), 20 s of processor time, 45 s on the
clock, no byte written to a file, and no file, socket or pipe opened. macOS does not enforce those
of memory; Windows has only that of the clock.

This is no sandbox: who finds a hole in a runtime that runs code runs it as you, in the child too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
import importlib.metadata
import io
import json
import math
import os
import pickle
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward import errors
from vinoreward.backends.base import BACKENDS
from vinoreward.backends.network import NetworkSpec, openvino_model, read_bytes
from vinoreward.backends.onnx_file import NotOnnx, check_operators
from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import (
    ModelCorruptError,
    ModelRefusedError,
    OutputError,
    RunFolderError,
    VinorewardError,
)
from vinoreward.files import (
    DAMAGED,
    cache_folder,
    check_header,
    load_tensors,
    open_to_read,
    read_json,
    read_npz,
    read_plain,
    reason_of,
    shown,
    write_json,
)
from vinoreward.processes import python_command, thread_limits

if TYPE_CHECKING:
    import torch

VERSION = 2
"""Of these checks. A network that passed those of another version is tried again."""
MEMORY = 896 << 20
SECONDS = 20
PATIENCE = 45.0
MAX_WEIGHTS = 8 << 30
"""Bytes of a network's weights."""
MAX_GOLDEN = 8
MAX_GOLDEN_BYTES = 64 << 20
MAX_NUMBERS = 1 << 26
"""Numbers in one result per image of a batch: 256 MiB of float32."""
SHIPPED = frozenset(
    {
        "3e9c048dcd8b68994d376d4512dcfb894242f34f98c3794c616ee031748cfea7",
        "ac5e571ad11cbdaed3dbac6da259029e4036bdbde24c632df2c782cf75b3cff8",
        "d4e999b8e1066597b32e432b8589c548eb000575ab8825095b3b6778b1967ce8",
        "d7f673bd930e6a848fa4acdb5d3db6629546001ddac542d1ef4587d3fd9d16fe",
    }
)
"""SHA-256 of the networks of the shipped bundles, which need no trial."""
_REMEDY = (
    "Expected a network of known operators whose memory and time are bounded; export it again from "
    "usual operators, with its weights inside the file, or, if you trust its source, load it with "
    "trusted=True (Bundle.load, Bundle.from_model, Bundle.from_encoder)"
)
# Without the package's own module, which registers environments and imports Gymnasium for that.
_CHILD = """
import types
package = sys.modules["vinoreward"] = types.ModuleType("vinoreward")
package.__path__ = [sys.argv[1]]
from vinoreward.backends.probe import child
child()
"""


def read_network(spec: NetworkSpec, runtime: str = "openvino") -> bytes:
    """Return the ONNX file of a network, tried in a child unless it is trusted.

    The child runs it in ``runtime``, ``"openvino"`` or ``"onnxruntime"``; backends of other
    libraries, which may need files, are content with OpenVINO's trial.

    Raises:
        ModelCorruptError: not a network that can be read.
        ModelRefusedError: operators that are not allowed, or too much memory or work.
        VinorewardError: those of :func:`~vinoreward.backends.network.read_bytes`.
    """
    if spec.content is not None:
        return spec.content
    content = read_bytes(spec.path, spec.sha256)
    if not spec.trusted:
        try_network(spec.path, content, spec, runtime)
    return content


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def try_network(
    path: Path, content: bytes, spec: NetworkSpec | None = None, runtime: str = "openvino"
) -> None:
    """Raise unless a network passed in a child; errors as :func:`read_network`.

    Without ``spec`` it is only read, not run.
    """
    digest = hashlib.sha256(content).hexdigest()
    if digest in SHIPPED:
        return
    facts = spec and (spec.size, spec.preprocess, spec.outputs)
    versions = [_version(name) for name in (runtime, "openvino")]
    known = repr((VERSION, digest, facts, runtime, versions))
    entry = cache_folder("networks") / f"{hashlib.sha256(known.encode()).hexdigest()}.json"
    with contextlib.suppress(OSError, ValueError):
        if read_json(entry) == {"passed": known}:
            return
    try:
        _ask("network", len(content), path, content, spec, runtime)
    except ModelRefusedError as error:
        remedy = "" if "Expected" in str(error) else f". {_REMEDY}"
        raise ModelRefusedError(f"{path} is refused: {error}{remedy}.") from error
    with contextlib.suppress(RunFolderError):
        write_json(entry, {"passed": known})


def read_weights(path: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a stranger's state dict by name: ``.safetensors``, or ``torch.save``'s.

    Of the latter they may be the file's ``state_dict`` or ``model_state_dict``.

    Raises:
        FileNotFoundError: there is no such file.
        ModelCorruptError: it is damaged or too large, or holds no tensors; only the reason.
        ImportError: torch or safetensors is not installed.
    """
    import safetensors
    import safetensors.torch

    try:
        with open_to_read(path, MAX_WEIGHTS) as stream:
            size = os.fstat(stream.fileno()).st_size
            content = stream.read() if path.suffix == ".safetensors" else None
        if content is None:
            content = _ask("weights", size, path, size)
        check_header(content)
        return safetensors.torch.load(content)
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, ModelRefusedError, *DAMAGED) as error:
        raise ModelCorruptError(reason_of(error)) from error


def _ask(job: str, size: int, *arguments: Any) -> bytes:
    """Return what a job of :data:`_JOBS` returns in a child; raise the error that it raises.

    Other ends are a ModelRefusedError with only the reason.
    """
    command = python_command(_CHILD, str(Path(__file__).parents[1]))
    pipe = subprocess.PIPE
    given = pickle.dumps((job, MEMORY + 6 * size, arguments))
    environment = {**os.environ, **thread_limits()}
    try:
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment
        ) as process:
            try:
                answer, said = process.communicate(given, timeout=PATIENCE)
            finally:  # of Ctrl-C, too, where subprocess.run would leave a process to be waited for
                process.kill()
                process.wait()
    except OSError as error:
        raise ModelRefusedError(f"no process to try it can start ({reason_of(error)})") from error
    except subprocess.TimeoutExpired:
        raise ModelRefusedError(f"it takes more than {PATIENCE:.0f} s to try") from None
    code = process.returncode
    head, _, body = answer.partition(b"\n")
    if code == 0 and head:
        error_class, text = json.loads(head)
        if not error_class:
            return body
        raise getattr(errors, error_class)(text)
    if code == -getattr(signal, "SIGXCPU", 0):
        raise ModelRefusedError(f"it takes more than {SECONDS} s of processor time to try")
    if code < 0:
        raise ModelRefusedError(
            f"it ended the process that tried it ({signal.Signals(-code).name}), for want of "
            "memory or by a fault"
        )
    last = said.decode("utf-8", "replace").strip().splitlines()[-1:]
    raise ModelRefusedError(f"the process that tried it failed ({shown(''.join(last))})")


# In the child


def child() -> None:
    """Do one job with limits; its pickled arguments come by standard input, from the parent.

    Standard output gets a line of JSON, the error's class and text, and what the job returns.
    """
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # libraries print
    _limit(CORE=0, CPU=SECONDS, FSIZE=0)
    if hasattr(signal, "alarm"):
        signal.alarm(math.ceil(PATIENCE))  # for a parent that is gone
    if hasattr(os, "sched_setaffinity"):  # so that libraries start one thread, not one per core
        os.sched_setaffinity(0, [random.choice(sorted(os.sched_getaffinity(0)))])
    job, memory, arguments = pickle.loads(sys.stdin.buffer.read())
    kind, text, body = "", "", b""
    try:
        body = _JOBS[job](memory, *arguments)
    except (VinorewardError, RuntimeError, MemoryError) as error:
        kind, text = type(error).__name__, str(error)
        if isinstance(error, MemoryError) or "alloc" in f"{error} {error.__cause__}":
            kind, text = "ModelRefusedError", f"it takes more than {memory >> 20} MiB of memory"
        elif not isinstance(error, VinorewardError):
            kind, text = "ModelRefusedError", reason_of(error)
    answers.write(json.dumps([kind, text]).encode() + b"\n" + body)
    answers.flush()
    os._exit(0)  # without what libraries do at exit


def _limit(**limits: int) -> None:
    """Set resource limits by name, those that the system has."""
    for name, value in limits.items():
        with contextlib.suppress(ImportError, AttributeError, ValueError, OSError):
            import resource

            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))


def _close(memory: int) -> None:
    """Set the limits under which nothing can be imported any more."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        _limit(DATA=(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + memory)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(AS=pages * os.sysconf("SC_PAGE_SIZE") + memory)
    _limit(NOFILE=0)


def _network(
    memory: int, path: Path, content: bytes, spec: NetworkSpec | None, runtime: str
) -> bytes:
    """Read a network, and run it if there is a ``spec``."""
    reading, running = BACKENDS.find("openvino"), BACKENDS.find(runtime)
    openvino: Any = import_openvino()
    importlib.import_module(running.library)
    shared_core(openvino).get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin
    importlib.import_module("openvino.passes")
    manager = openvino.frontend.FrontEndManager()
    manager.load_by_framework("onnx")
    openvino.frontend.FrontEndManager = lambda: manager  # a new one would look for its libraries
    images = [] if spec is None else _images(spec)
    _close(memory)
    try:
        check_operators(content)
    except NotOnnx as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a network: {error}. Expected an ONNX file; the file is "
            "damaged or of another kind, export it again."
        ) from error
    if spec is None:
        openvino_model(openvino, path, content)
        return b""
    known = dataclasses.replace(spec, content=content)
    reader: Any = reading(known)
    for size, model in reader.shaped_models():
        _check_model(openvino, model, size)
    with running(known).load() as own:
        for image in images:
            with contextlib.suppress(OutputError):  # what it returns is checked where it is used
                own.infer(image[None])
    return b""


def _check_model(openvino: Any, model: Any, rows: int) -> None:
    """Refuse what an image could make harmful: sizes, indices and divisors that depend on it.

    The runtimes take any index and any divisor, and a trial with other images shows nothing.
    """
    manager = openvino.passes.Manager()
    manager.register_pass(openvino.passes.ConstantFolding())
    manager.run_passes(model)
    for node in model.get_ops():
        kind = node.get_type_name()
        for output in node.outputs():
            if output.partial_shape.is_dynamic:
                raise ModelRefusedError(f"the size of a result of {kind} depends on the image")
            # To iterate over a shape costs twenty times as much: it ends with an exception in C++.
            sizes = [output.shape[axis] for axis in range(len(output.shape))]
            if math.prod(sizes) > MAX_NUMBERS * rows:
                raise ModelRefusedError(
                    f"a result of {kind} has the shape {'x'.join(map(str, sizes))}, more than "
                    f"{MAX_NUMBERS} numbers per image"
                )
        if kind in ("Gather", "GatherND", "ScatterNDUpdate"):
            _check_indices(node, kind)
        elif kind in ("Divide", "FloorMod", "Mod") and node.get_element_type().is_integral():
            divisor = _constant(node, 1)
            if divisor is None or not (divisor > 0).all():
                raise ModelRefusedError(f"its {kind} divides integers by what may be 0")


def _check_indices(node: Any, kind: str) -> None:
    indices, shape, first = _constant(node, 1), list(node.input_value(0).shape), 0
    axis = _constant(node, 2) if kind == "Gather" else None
    ends = np.array(shape)
    if axis is not None and indices is not None:
        ends, indices = ends[[axis.item()]], indices.reshape(-1, 1)
        first = -ends[0]
    elif kind == "Gather" or node.get_attributes().get("batch_dims", 0):
        indices = None
    if indices is None:
        raise ModelRefusedError(f"the indices of its {kind} depend on the image")
    ends = ends[: indices.shape[-1]]
    if not ((indices >= first) & (indices < ends)).all():
        raise ModelRefusedError(f"the indices of its {kind} point outside of {shape}")


def _constant(node: Any, place: int) -> NDArray[Any] | None:
    """Return an input's value, None if it is calculated from the image."""
    source = node.input_value(place).get_node()
    return source.data if source.get_type_name() == "Constant" else None


def _images(spec: NetworkSpec) -> list[NDArray[Any]]:
    """Return a blank image and the first golden ones."""
    blank = np.zeros(spec.shape, np.uint8)
    golden: list[NDArray[Any]] = []
    if spec.golden is not None:
        with contextlib.suppress(OSError, ModelCorruptError, KeyError):
            data = read_plain(spec.golden, MAX_GOLDEN_BYTES)
            golden = [*read_npz(data, MAX_GOLDEN_BYTES)["images"][:MAX_GOLDEN]]
    return [blank, *(image for image in golden if image.shape == blank.shape)]


def _weights(memory: int, path: Path, size: int) -> bytes:
    """Return the tensors of a state dict as safetensors."""
    import safetensors.torch
    import torch

    sample = io.BytesIO()  # saved and loaded once, they import what they need
    torch.save({"sample": torch.zeros(1)}, sample)
    sample.seek(0)
    safetensors.torch.save(torch.load(sample, weights_only=True))
    with open_to_read(path, size) as stream:
        _close(memory)
        state = load_tensors(stream)
    for key in ("state_dict", "model_state_dict"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    items = state.items() if isinstance(state, dict) else ()
    tensors = {name: value for name, value in items if isinstance(value, torch.Tensor)}
    if not tensors or not all(isinstance(name, str) for name in tensors):
        raise ModelCorruptError("it holds no table of names and tensors")
    if sum(value.nbytes for value in tensors.values()) > 2 * size:  # two names may share one
        raise ModelCorruptError("its tensors are larger than the file")
    layout = torch.contiguous_format
    copies = {name: value.clone(memory_format=layout) for name, value in tensors.items()}
    return safetensors.torch.save(copies)


_JOBS: dict[str, Callable[..., bytes]] = {"network": _network, "weights": _weights}
