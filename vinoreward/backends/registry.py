"""Finding a backend by name."""

from __future__ import annotations

import importlib.util
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from vinoreward.backends.base import Backend
from vinoreward.backends.spec import NetworkSpec
from vinoreward.errors import ConfigError, MissingExtraError, UnknownBackendError, install_command

GROUP = "vinoreward.backends"


def load_backend(
    name: str,
    spec: NetworkSpec,
    *,
    device: str = "CPU",
    precision: str = "fp32",
    threads: int = 1,
    cache_dir: Path | None = None,
) -> Backend:
    """Make a backend for a network. The network is read on first use, or by ``.load()``.

    Args:
        name: ``"openvino"``, ``"onnxruntime"``, ``"torch"``, or one that another package registers
            in the entry-point group ``vinoreward.backends``.
        spec: the network.
        device: device name, in capitals (``"CPU"``).
        precision: ``"fp32"``, ``"bf16"`` or ``"int8"``.
        threads: threads that one inference may use.
        cache_dir: folder for compiled models (OpenVINO only); ``None`` keeps none.

    Raises:
        UnknownBackendError: no backend of that name.
        MissingExtraError: its library is not installed.
        ConfigError: the backend cannot do what is asked.
    """
    backend = find_backend(name)
    problem = _missing(backend)
    if problem is not None:
        raise MissingExtraError(problem)
    return backend(spec, device=device, precision=precision, threads=threads, cache_dir=cache_dir)


def available_backends() -> dict[str, str | None]:
    """Return each registered backend's name with ``None``, or with why it cannot be used."""
    found: dict[str, str | None] = {}
    for name, entry in sorted(_entries().items()):
        try:
            found[name] = _missing(_load(entry))
        except (ImportError, ConfigError) as error:
            found[name] = str(error)
    return found


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def find_backend(name: str) -> type[Backend]:
    """Return the class of a backend; its library is not imported yet.

    Raises:
        UnknownBackendError: no backend of that name.
    """
    entries = _entries()
    if name not in entries:
        raise UnknownBackendError(
            f"there is no backend {name!r}. Expected one of {', '.join(sorted(entries)) or 'none'};"
            f" another package can add one in the entry-point group {GROUP!r}."
        )
    return _load(entries[name])


def _load(entry: EntryPoint) -> type[Backend]:
    found = entry.load()
    if not (isinstance(found, type) and issubclass(found, Backend)):
        raise ConfigError(
            f"the entry point {entry.name!r} of {GROUP!r} is {entry.value}. Expected a subclass of "
            "vinoreward.backends.base.Backend; correct the package that registers it."
        )
    return found


def _missing(backend: type[Backend]) -> str | None:
    if not backend.library or importlib.util.find_spec(backend.library) is not None:
        return None
    extra = backend.extra
    command = install_command(extra) if extra else f"pip install '{backend.library}'"
    return (
        f"the {backend.name} backend needs {backend.library}, which is not installed. "
        f"Install it with: {command}"
    )
