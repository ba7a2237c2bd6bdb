"""Warp on one device: its start, its arrays with views of NumPy or torch, and recorded launches."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.runtime import ForkedLock
from vinoreward.errors import ConfigError, UnknownDeviceError, needed_for

ROOM: Final = 4 << 20
"""Bytes for compiled kernels, which take about one megabyte."""
_LOADING = ForkedLock()
"""Held while Warp starts, or compiles and loads kernels: where two threads do so, the process may
die."""


def warp_module() -> Any:
    """Return the module ``warp``, initialised silently."""
    warp: Any
    with needed_for("drawing images, and finding joints of the arm,", "panda"):
        import warp
    # A greeting and a line per compiled module are printed at the level below.
    warp.config.log_level = max(warp.config.log_level, warp.LOG_WARNING)
    with _LOADING, warnings.catch_warnings(), quiet_stderr():
        # Of Python 3.10, which the next Warp leaves behind; the extra pins one that still has it.
        warnings.filterwarnings("ignore", "Support for Python", FutureWarning)
        # Without a graphics driver Warp's C code warns on stderr at any log level. Failures raise.
        try:
            warp.init()
        except OSError as error:
            raise ConfigError(
                f"the camera cannot keep its compiled kernels at {error.filename}: "
                f"{error.strerror}. Expected a home folder that can be written; set "
                "WARP_CACHE_PATH to another folder."
            ) from error
    cache = Path(warp.config.kernel_cache_dir)
    free = shutil.disk_usage(cache).free
    # Where kernels cannot be kept the compiler would end the process.
    if free < ROOM and not any(cache.glob("wp_vinoreward_envs.*")):  # compiled before
        raise ConfigError(
            f"the camera cannot keep its compiled kernels at {cache}: {free >> 10} kB are free. "
            f"Expected {ROOM >> 20} MB; free some, or set WARP_CACHE_PATH to another folder."
        )
    return warp


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Drop what C code writes to the process's stderr."""
    try:
        stderr = os.dup(2)
    except OSError:  # a windowed or detached process has none
        yield
        return
    sys.stderr.flush()
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def struct(kind: Any, **fields: Any) -> Any:
    """Return a struct of Warp's with these values."""
    made = kind()
    for name, value in fields.items():
        setattr(made, name, value)
    return made


@functools.cache
class WarpDevice:
    """Arrays and kernels on ``"cpu"`` or a CUDA device.

    Args:
        device: its name, as Warp has it.
        tensors: views are torch tensors, as they always are on CUDA; else NumPy arrays.

    Raises:
        UnknownDeviceError: Warp has no such device here.
    """

    def __init__(self, device: str, tensors: bool = False) -> None:
        self.name = device
        self.tensors = tensors or device != "cpu"
        self.warp = warp_module()
        known = [str(each) for each in self.warp.get_devices()]
        if device not in known:
            raise UnknownDeviceError(
                f"Found camera device {device!r}; expected one of {', '.join(known)}. Choose one "
                "of these."
            )

    def zeros(self, *shape: int, dtype: Any) -> Any:
        """Return an array of zeros."""
        return self.warp.zeros(shape, dtype=dtype, device=self.name)

    def of(self, values: NDArray[Any], dtype: Any) -> Any:
        """Return a copy of a NumPy array."""
        return self.warp.array(values, dtype=dtype, device=self.name)

    def view(self, array: Any) -> Any:
        """Return a NumPy array or a torch tensor of the same memory."""
        return self.warp.to_torch(array) if self.tensors else array.numpy()

    def fill(self, view: Any, values: Any) -> None:
        """Write arrays or tensors from anywhere into the first rows of a view."""
        if self.tensors and isinstance(values, np.ndarray):
            values = self.warp.to_torch(self.warp.array(values, device=self.name))
        view[: len(values)] = values

    def record_launch(self, kernel: Any, dim: Sequence[int], inputs: list[Any]) -> Launch:
        """Return a launch of a kernel, compiled and loaded; ``dim`` are a scene's threads."""
        with _LOADING:
            command = self.warp.launch(kernel, (1, *dim), inputs, device=self.name, record_cmd=True)
        return Launch(command, tuple(dim))

    def stream(self) -> Any:
        """Return torch's stream, on which work on its tensors is in order; None on the CPU."""
        if self.name == "cpu":
            return None
        import torch

        return self.warp.stream_from_torch(torch.cuda.current_stream(self.name))


class Launch:
    """A recorded launch of a kernel with ``dim`` threads for each scene."""

    def __init__(self, command: Any, dim: tuple[int, ...]) -> None:
        self._command, self._dim, self._count = command, dim, 1

    def __call__(self, count: int, stream: Any = None) -> None:
        """Run it for the first ``count`` scenes."""
        if count != self._count:
            self._command.set_dim((count, *self._dim))
            self._count = count
        self._command.launch(stream)
