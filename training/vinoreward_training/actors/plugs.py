"""Factories for the options' expressions: the compressor's chain, the correctors, the monitor."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from vinoreward.compression import Compile, Distill, Fuse, LowRank, Prune, Quantize
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.stage import Stage
from vinoreward.correction import (
    ImportanceSampling,
    NoCorrection,
    QLambda,
    Retrace,
    TreeBackup,
    VTrace,
)
from vinoreward.entry_points import Registry
from vinoreward.errors import ConfigError
from vinoreward.monitoring import (
    AdaptiveSparsity,
    Composite,
    CompressionSetting,
    Limit,
    LinearAlpha,
    Monitor,
    Staged,
    SwitchPrecision,
    default_indicators,
    default_strategy,
)
from vinoreward_training.actors.words import Part, call, check_needed, parse

if TYPE_CHECKING:
    from vinoreward.compression.chain import CompressorChain
    from vinoreward.correction import Corrector
    from vinoreward.monitoring import CompressionSetting, Monitor
    from vinoreward.policies.spec import Head, PolicySpec

BACKENDS = ("openvino", "onnxruntime", "numpy")
STAGES = (
    "prune SPARSITY",
    "distill [NETWORK]",
    "low-rank RANK",
    "fuse",
    "int8",
    "fp16",
    "w2 to w8",
)
OTHER_STAGES = Registry("vinoreward.stages", Stage, "stage")  # type: ignore[type-abstract]
"""Stages from other packages."""
CORRECTORS = ("vtrace", "importance", "retrace", "tree-backup", "q-lambda", "uncorrected")
MONITORS = ("default", "watch", "kl", "alpha", "staged", "sparsity", "off")


def chain_of(
    text: str, backend: str, network: Callable[[str], PolicySpec]
) -> CompressorChain | None:
    """Return the chain that ``--compress`` describes; None for ``none``.

    If the chain names no backend, it uses that of full precision, or OpenVINO instead of PyTorch.

    Args:
        text: such as ``"prune 0.5 | distill | int8 | openvino"``.
        backend: of full-precision weights.
        network: returns a student's spec by its name.

    Raises:
        ConfigError: an unknown stage, invalid settings, or stages in a wrong order.
    """
    parts = parse(text, "--compress")
    if not parts:
        return None

    chain = CompressorChain()
    for part in parts:
        chain.add(_stage(part, network))
    if not any(isinstance(stage, Compile) for stage in chain.stages):
        chain.add(_stage(Part(backend if backend in BACKENDS else "openvino"), network))
    chain.check()
    return chain


def _stage(part: Part, network: Callable[[str], PolicySpec]) -> Stage:

    def distill(student: object = None, **options: Any) -> Stage:
        return Distill(**options, student=None if student is None else network(str(student)))

    if part.name in BACKENDS:
        made: Stage = call(part, partial(Compile, part.name), "--compress")
    elif re.fullmatch("int8|fp16|w[2-8]", part.name):
        made = call(part, partial(Quantize, part.name), "--compress")
    elif part.name == "prune":
        made = call(part, Prune, "--compress", ("sparsity",))
    elif part.name == "distill":
        made = call(part, distill, "--compress", ("student",), Distill)
    elif part.name == "low-rank":
        if not part.values and not {"rank", "energy"} & set(part.options):  # one of the two
            check_needed(part, "--compress", ("rank",), ("rank",))
        made = call(part, LowRank, "--compress", ("rank",))
    elif part.name == "fuse":
        made = call(part, Fuse, "--compress")
    elif part.name in OTHER_STAGES.names():
        made = call(part, OTHER_STAGES.find(part.name), "--compress")
    else:
        raise ConfigError(
            f"--compress has the stage {part.name!r}. Expected some of "
            f"{', '.join((*STAGES, *OTHER_STAGES.names()))}, and one of {', '.join(BACKENDS)} at "
            "the end."
        )
    return made


def correctors_of(text: str | None) -> tuple[Corrector, ...] | None:
    """Return the correctors that ``--correctors`` names; None for the algorithm's own.

    Raises:
        ConfigError: an unknown corrector, or invalid settings.
    """
    if text is None:
        return None

    kinds: Mapping[str, Any] = {
        "vtrace": VTrace,
        "importance": ImportanceSampling,
        "retrace": Retrace,
        "tree-backup": TreeBackup,
        "q-lambda": QLambda,
        "uncorrected": NoCorrection,
    }
    found = []
    for part in parse(text, "--correctors"):
        if part.name not in kinds:
            raise ConfigError(
                f"--correctors has {part.name!r}. Expected some of {', '.join(CORRECTORS)}, with "
                "settings such as vtrace rho=1."
            )
        options = {
            key: math.inf if value in ("inf", math.inf) else value
            for key, value in part.options.items()
        }
        found.append(call(Part(part.name, part.values, options), kinds[part.name], "--correctors"))
    if not found:
        raise ConfigError(
            f"--correctors is {text!r}. Expected one of {', '.join(CORRECTORS)}; to learn without "
            "a correction, use uncorrected."
        )
    return tuple(found)


def setting_of(parameters: Mapping[str, float], pull_period: int) -> CompressionSetting:
    """Return the chain's parameters as the monitor's initial setting."""

    bits = parameters.get("bits")
    return CompressionSetting(
        bits=None if bits is None else int(bits),
        sparsity=float(parameters.get("sparsity", 0.0)),
        pull_period=pull_period,
    )


def monitor_of(
    text: str, head: Head, chain: CompressorChain | None, pull_period: int, bits: int = 32
) -> Monitor | None:
    """Return the monitor that ``--monitor`` names; None for ``off`` or without compression.

    Args:
        text: a name of :data:`MONITORS` with settings, or several with ``|``: the first that wants
            a change gets it.
        head: of the policy.
        chain: of the compressor.
        pull_period: the initial one.
        bits: of pushes; without a chain, the monitor watches and adjusts these.

    Raises:
        ConfigError: an unknown monitor, or invalid settings.
    """
    parts = parse(text, "--monitor")
    for part in parts:
        if part.name not in MONITORS or part.name == "off":  # "off" cannot be combined
            raise ConfigError(
                f"--monitor has {part.name!r}. Expected one of {', '.join(MONITORS)}, with "
                "settings such as kl threshold=14."
            )
    if not parts or (chain is None and bits == 32):
        return None
    if chain is None and any(part.name == "alpha" for part in parts):
        raise ConfigError(
            "--monitor alpha mixes a compressed network with the learner's, but --bits alone does "
            "not create one. Expected --compress, or another monitor, such as kl or default."
        )

    parameters = {"bits": float(bits)} if chain is None else chain.parameters()
    setting = setting_of(parameters, pull_period)
    safer = () if chain is None else chain.safer()
    strategies = [
        found for part in parts if (found := _strategy(part, head, parameters, safer)) is not None
    ]
    strategy = None
    if strategies:
        strategy = strategies[0] if len(strategies) == 1 else Composite(strategies)
    return Monitor(default_indicators(head), strategy, setting)


def _strategy(
    part: Part,
    head: Head,
    parameters: Mapping[str, float],
    safer: Sequence[Mapping[str, Any]],
) -> Any:

    def above(bad: float, good: float) -> None:
        if not 0.0 <= good < bad:  # otherwise a small divergence would be the bad one
            raise ConfigError(
                f"--monitor has a divergence that is bad from {bad} and good up to {good}. "
                "Expected bad above good, and none below 0."
            )

    def switch(threshold: float = 14.0, good: float | None = None, **options: Any) -> Any:
        low = 0.25 * threshold if good is None else good
        above(threshold, low)
        return SwitchPrecision(limits=(Limit("kl_pi_mu_max", threshold, low),), **options)

    def sparsity(bad: float = 0.2, good: float = 0.1, **options: Any) -> Any:
        above(bad, good)
        return AdaptiveSparsity((Limit("kl_mu_pi_max", bad, good),), **options)

    def nothing() -> None:
        """Takes no settings."""

    if part.name in ("watch", "default"):
        call(part, nothing, "--monitor")
        return default_strategy(head, safer) if part.name == "default" else None
    _needs(part, head, parameters)
    kinds: Mapping[str, Any] = {
        "kl": (switch, ("threshold",), SwitchPrecision),
        "alpha": (LinearAlpha, ("low", "high")),
        "staged": (Staged, ()),
        "sparsity": (sparsity, ("bad",), AdaptiveSparsity),
    }
    kind, *more = kinds[part.name]
    return call(part, kind, "--monitor", *more)


def _needs(part: Part, head: Head, parameters: Mapping[str, float]) -> None:
    """Refuse a strategy that could neither change anything nor get readings."""
    parameter = {"kl": "bits", "sparsity": "sparsity"}.get(part.name)
    if parameter is not None and parameter not in parameters:
        stage = "int8" if parameter == "bits" else "prune 0.5 | distill"
        raise ConfigError(
            f"--monitor {part.name} adjusts the {parameter}, but no stage of --compress has it. "
            f"Expected such a stage: {stage}."
        )
    if head == "q" and part.name in ("kl", "alpha", "sparsity"):
        raise ConfigError(
            f"--monitor {part.name} decides by a divergence of action probabilities, which action "
            "values do not have. Expected default, watch, staged or off."
        )
