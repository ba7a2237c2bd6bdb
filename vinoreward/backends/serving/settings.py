"""What a service runs, as plain data, and the key by which callers find it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.backends.base import Backend, load_backend
from vinoreward.backends.network import NetworkSpec, Preprocess, TensorSpec
from vinoreward.backends.serving import service_name
from vinoreward.backends.serving.wire import PROTOCOL
from vinoreward.files import sha256

# Variables that change what a library computes, or on what.
_LIBRARIES = ("ONEDNN_", "DNNL_", "OV_", "OPENVINO_", "ORT_", "CUDA_", "TORCH_", "VINOREWARD_OPEN")


@dataclass(frozen=True)
class Network:
    """One network and its precision."""

    spec: NetworkSpec
    precision: str

    @classmethod
    def of(cls, backend: Backend) -> Network:
        """Describe a backend's network: absolute paths, and the hashes of its files as they are."""
        spec = backend.spec
        path = Path(os.path.abspath(spec.path))
        weights = None if spec.weights is None else Path(os.path.abspath(spec.weights))
        return cls(
            dataclasses.replace(
                spec,
                path=path,
                weights=weights,
                sha256=spec.sha256 or _hash(path),
                weights_sha256=spec.weights_sha256 or _hash(weights),
            ),
            backend.precision,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        spec = dataclasses.asdict(self.spec)
        for name in ("path", "weights"):
            spec[name] = None if spec[name] is None else str(spec[name])
        return {"precision": self.precision, "spec": spec}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Network:
        """Read what :meth:`to_dict` returned."""
        spec = dict(data["spec"])
        for name in ("input", "output"):
            part = spec[name]
            spec[name] = TensorSpec(tuple(part["shape"]), str(part["dtype"]))
        if spec["preprocess"] is not None:
            steps = dict(spec["preprocess"])
            steps |= {name: tuple(steps[name]) for name in ("mean", "std")}
            spec["preprocess"] = Preprocess(**steps)
        spec["mean"], spec["std"] = tuple(spec["mean"]), tuple(spec["std"])
        spec["views"] = tuple((str(name), int(height)) for name, height in spec["views"])
        spec["path"] = Path(spec["path"])
        spec["weights"] = None if spec["weights"] is None else Path(spec["weights"])
        return cls(NetworkSpec(**spec), str(data["precision"]))


@dataclass(frozen=True)
class ServiceSettings:
    """All that decides what a service answers.

    Attributes:
        networks: what it runs.
        backend: registered name of the backend that runs them.
        device: of that backend.
        threads: of one inference; the service has one thread besides.
        cache_dir: folder for compiled models.
        name: of callers that agree to follow swaps; empty: none do.
        program: interpreter, version of vinoreward and its place, and variables that libraries
            read.
    """

    networks: tuple[Network, ...]
    backend: str
    device: str
    threads: int
    cache_dir: str | None
    name: str
    program: tuple[str, ...]

    @classmethod
    def of(cls, backend: str, backends: Sequence[Backend], service: str) -> ServiceSettings:
        """Describe the service that runs what these backends, all of one kind, would run."""
        first = backends[0]
        return cls(
            tuple(Network.of(one) for one in backends),
            backend,
            first.device,
            first.threads,
            None if first.cache_dir is None else os.path.abspath(first.cache_dir),
            service_name(service),
            _program(),
        )

    @property
    def key(self) -> bytes:
        """A hash of everything: callers of other settings have another one."""
        text = json.dumps(self.to_dict(), sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(PROTOCOL + text.encode()).digest()

    @property
    def stem(self) -> str:
        """The key as files are named by it."""
        return self.key.hex()[:32]

    def make(self, networks: Sequence[Network] | None = None) -> list[Backend]:
        """Return backends for the networks, not loaded yet."""
        return [
            load_backend(
                self.backend,
                network.spec,
                device=self.device,
                precision=network.precision,
                threads=self.threads,
                cache_dir=None if self.cache_dir is None else Path(self.cache_dir),
            )
            for network in (self.networks if networks is None else networks)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        rest = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.name != "networks"
        }
        rest["program"] = list(self.program)
        return {"networks": [network.to_dict() for network in self.networks], **rest}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ServiceSettings:
        """Read what :meth:`to_dict` returned."""
        rest = {**data, "program": tuple(data["program"])}
        rest["networks"] = tuple(Network.from_dict(network) for network in data["networks"])
        return cls(**rest)


def _program() -> tuple[str, ...]:
    from vinoreward import __version__

    variables = [
        f"{name}={value}" for name, value in os.environ.items() if name.startswith(_LIBRARIES)
    ]
    place = str(Path(__file__).resolve().parents[2])
    return (sys.executable, platform.python_version(), __version__, place, *sorted(variables))


def _hash(path: Path | None) -> str | None:
    """Return a file's SHA-256; None if it cannot be read, which the service will report."""
    try:
        return None if path is None else sha256(path)
    except OSError:
        return None
