"""The exceptions of vinoreward.

::

    VinorewardError
    ├── ConfigError (ValueError)                 an argument or configuration that cannot work
    │   ├── UnknownBackendError                  no such backend
    │   ├── UnknownDeviceError                   the backend has no such device
    │   └── ImageMismatchError                   the environment's image is not the bundle's
    ├── MissingExtraError (ImportError)          an optional dependency is not installed
    ├── MissingDisplayError (RuntimeError)       no display, or no OpenGL
    ├── InputError (ValueError)                  an array of the wrong shape, dtype or range
    ├── OutputError (RuntimeError)               NaN, infinity or a wrong shape from a network
    ├── OutOfDistributionError (RuntimeError)    an image unlike those of the training
    ├── ModelNotFoundError (FileNotFoundError)   no model file or bundle at that path or name
    ├── ModelCorruptError (ValueError)           a model file that cannot be read
    ├── ModelRefusedError (ValueError)           a network that could take too much memory or time
    ├── BundleError (ValueError)                 a bundle that is not valid
    │   ├── BundleEditedError                    a file's hash is not the recorded one
    │   └── BundleParityError                    golden frames give other outputs than recorded
    ├── DatasetError (ValueError)                a capture or image folder that cannot be used
    ├── TooFewNegativesError (ValueError)        too little data for the claimed error rate
    ├── QuantizationRefusedError (RuntimeError)  INT8 flips more decisions than allowed
    ├── UselessClassifierError (RuntimeError)    a classifier that fails its tests
    ├── RunFolderError (OSError)                 a run folder that is locked, full or unwritable
    └── SharedMemoryError (OSError)              shared memory that cannot be allocated, or changed

Messages say what was found, what was expected and what to do. ``field`` is an argument that is
wrong; a command shows it, and names in backticks, as its options: ``--hold``.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NO_VALUE = object()
_ARGUMENT = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")


class VinorewardError(Exception):
    """Base of all exceptions raised by vinoreward.

    Args:
        message: the whole message; names of arguments stand in backticks.
        field: the argument that is wrong, as Python names it.
        value: what was found there.
        expected: what may stand there.
        remedy: what to do; None: change the argument.
    """

    def __init__(
        self,
        message: str = "",
        *,
        field: str | None = None,
        value: object = _NO_VALUE,
        expected: str = "",
        remedy: str | None = None,
    ) -> None:
        self.field, self.expected = field, expected
        self.value = None if value is _NO_VALUE else value
        self.remedy = f"change `{field}`" if remedy is None else remedy
        if not message:
            text = repr(value)[:80].replace("`", "'")
            found = f"`{field}`" if value is _NO_VALUE else f"`{field}={text}`"
            message = f"found {found}. Expected {expected}; {self.remedy}."
        self._message = message
        super().__init__(self.as_options(()))

    def as_options(self, options: Collection[str]) -> str:
        """Return the message for a command line: the arguments that it has as its options."""

        def replaced(name: re.Match[str]) -> str:
            return _as_option(name) if name[1] in options else name[0].strip("`")

        return _ARGUMENT.sub(replaced, self._message)


def _as_option(name: re.Match[str]) -> str:
    option = f"--{name[1].replace('_', '-')}"
    if name[2] == "False":
        return f"--no-{option[2:]}"
    return option if name[2] in (None, "True") else f"{option} {name[2]}"


class ConfigError(VinorewardError, ValueError):
    """An argument or a configuration that cannot work."""


class UnknownBackendError(ConfigError):
    """No backend of that name is registered."""


class UnknownDeviceError(ConfigError):
    """The backend does not offer that device on this machine."""


class OutOfDistributionError(VinorewardError, RuntimeError):
    """An image is unlike all that the classifier was trained on (``on_ood="raise"``)."""


class ImageMismatchError(ConfigError):
    """The image an environment makes is not the one the bundle was trained on."""


class MissingExtraError(VinorewardError, ImportError):
    """An optional dependency is not installed; the message names the extra."""


def install_command(extra: str) -> str:
    """Return the command that installs an extra, from the source of the installed vinoreward."""
    try:
        record = distribution("vinoreward").read_text("direct_url.json")  # pip's, of PEP 610
        origin = json.loads(record or "{}")
    except (PackageNotFoundError, ValueError):
        origin = {}
    url, vcs = str(origin.get("url", "")), origin.get("vcs_info", {}).get("vcs")
    if url and not url.startswith("file:"):
        return f"pip install 'vinoreward[{extra}] @ {f'{vcs}+' if vcs else ''}{url}'"
    path = Path(unquote(urlsplit(url).path)) if url else Path(__file__).parents[1]
    if path.is_file() or (path / "pyproject.toml").is_file():  # a wheel, or a checkout
        editable = "-e " if origin.get("dir_info", {}).get("editable") else ""
        return f"pip install {editable}{shlex.quote(f'{path}[{extra}]')}"
    if url:
        return f"pip install '.[{extra}]' in a copy of vinoreward's repository"
    return f"pip install 'vinoreward[{extra}]'"


@contextlib.contextmanager
def needed_for(what: str, extra: str) -> Iterator[None]:
    """Turn an ImportError in the block into a MissingExtraError: ``what`` needs ``extra``."""
    try:
        yield
    except ImportError as error:
        raise MissingExtraError(
            f"{what} needs {error.name}, which is not installed or does not load here. Install it "
            f"with: {install_command(extra)}"
        ) from error


class MissingDisplayError(VinorewardError, RuntimeError):
    """A window cannot open, or nothing be drawn: there is no display, or no OpenGL."""


class InputError(VinorewardError, ValueError):
    """An array of the wrong shape, dtype or range was given to a network."""


class OutputError(VinorewardError, RuntimeError):
    """A network returned NaN, infinity or an unexpected shape."""


class ModelNotFoundError(VinorewardError, FileNotFoundError):
    """No model file or bundle at that path or of that name."""


class ModelCorruptError(VinorewardError, ValueError):
    """A model file that cannot be read."""


class ModelRefusedError(VinorewardError, ValueError):
    """A network with operators that are not allowed, or that needs too much memory or time."""


class BundleError(VinorewardError, ValueError):
    """A bundle that is not valid."""


class BundleEditedError(BundleError):
    """A file of the bundle is not the one that was saved."""


class BundleParityError(BundleError):
    """The golden frames give other outputs than those recorded."""


class DatasetError(VinorewardError, ValueError):
    """A capture or an image folder that cannot be used."""


class TooFewNegativesError(VinorewardError, ValueError):
    """Too little data to support the claimed error rate."""


class QuantizationRefusedError(VinorewardError, RuntimeError):
    """Quantization changes more decisions than the gate allows."""


class UselessClassifierError(VinorewardError, RuntimeError):
    """A classifier whose tests show that its reward cannot be learned from."""


class RunFolderError(VinorewardError, OSError):
    """A run folder that is in use, full or not writable."""


class SharedMemoryError(VinorewardError, OSError):
    """Shared memory that cannot be allocated, or was changed by others."""
