"""The YAML lists of ``--compress``, ``--monitor`` and correctors, and what they make.

An item is a name, or a name with its value or a table of its settings, as in ``[{prune: 0.5},
{distill: {steps: 32}}, {quantize: int8}]``. The settings are the arguments of a class, whose
annotations give their types. One item needs no list: ``quantize: int8``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from vinoreward.entry_points import Registry
from vinoreward.errors import ConfigError
from vinoreward_actors import correction, monitoring
from vinoreward_actors.compression import Compile, Distill, Prune, Quantize
from vinoreward_actors.compression.chain import CompressorChain, Stage
from vinoreward_actors.policies.backends.choice import AUTO
from vinoreward_training.runs.settings import converted, parse_yaml

if TYPE_CHECKING:
    from vinoreward_actors.policies.spec import Head, PolicySpec

BACKENDS = ("openvino", "onnxruntime", "numpy")
STAGES: Mapping[str, tuple[Any, str]] = {
    "prune": (Prune, "sparsity"),
    "distill": (Distill, "student"),
    "quantize": (Quantize, "precision"),
    "compile": (Compile, "backend"),
}
"""Name to the class, and to the setting that a value without a name is."""
OTHER_STAGES = Registry("vinoreward.stages", Stage, "stage")  # type: ignore[type-abstract]
"""Stages from other packages."""
CORRECTORS: Mapping[str, Any] = {
    "vtrace": correction.VTrace,
    "importance": correction.ImportanceSampling,
    "uncorrected": correction.NoCorrection,
}
MONITORS = ("default", "watch", "kl", "alpha", "staged", "off")


@dataclass(frozen=True)
class Item:
    """One item of a list."""

    name: str
    value: Any = None
    """Of the setting that needs no name; None if there is none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    option: str = ""
    """Of the command, for messages."""

    def make(self, kind: Any, first: str = "", also: Any = None) -> Any:
        """Call ``kind`` with the settings.

        ``first`` is the name of the value's setting. ``also`` is what ``kind`` passes further
        settings on to.
        """
        takes = {
            name: each
            for source in (also, kind)
            for name, each in _parameters(source).items()
            if _is_plain(each.annotation)
        }
        given = {**self.settings} if self.value is None else {first: self.value, **self.settings}
        for name, value in given.items():
            if name not in takes:
                known = ", ".join(takes) or "none"
                raise self.wrong(f"{name or 'value'}={value!r:.80}", f"settings of: {known}")
            try:
                given[name] = converted(value, takes[name].annotation)
            except ValueError as error:
                raise self.wrong(f"{name}={value!r:.80}", str(error)) from error
        required = [n for n in takes if takes[n].default is inspect.Parameter.empty]
        if missing := [name for name in required if name not in given]:
            raise self.wrong(f"no {' and no '.join(missing)}", "a value for each")
        try:
            return kind(**given)
        except TypeError as error:
            raise self.wrong(f"{given!r:.80}: {error}", "other values") from error
        except ConfigError as error:
            raise ConfigError(f"{self.option} has {self.name}: {error}") from error

    def wrong(self, found: str, expected: str) -> ConfigError:
        """Return an error that names the item, what was found and what is expected."""
        return ConfigError(f"{self.option} has {self.name} with {found}. Expected {expected}.")


def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """Return what a callable takes by name; without an annotation it takes any value."""
    if kind is None:
        return {}
    try:
        signature = inspect.signature(kind, eval_str=True)
    except NameError:  # a name imported only for type checkers
        signature = inspect.signature(kind)
    return {
        name: each.replace(annotation=Any)
        if each.annotation is each.empty or isinstance(each.annotation, str)
        else each
        for name, each in signature.parameters.items()
        if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)
    }


def items_of(text: str, option: str) -> list[Item]:
    """Read a list of items; empty text, ``none`` and ``off`` give none."""
    if text.strip().lower() in ("", "none", "off"):
        return []
    try:
        value = parse_yaml(text)
    except ValueError as error:
        raise ConfigError(
            f"{option} is {text!r:.80}, which is no YAML ({error}). Expected a list such as "
            "[{prune: 0.5}, distill, {quantize: int8}]."
        ) from error
    return [_item(one, option) for one in (value if isinstance(value, list) else [value])]


def _item(given: Any, option: str) -> Item:
    pairs = [(given, None)] if isinstance(given, str) else None
    if isinstance(given, dict):
        pairs = list(given.items())
    if pairs is None or len(pairs) != 1 or not isinstance(pairs[0][0], str):
        raise ConfigError(
            f"{option} has {given!r:.80}. Expected a name, or one name with its value or a table "
            "of its settings, such as distill, {prune: 0.5} or {distill: {steps: 32}}."
        )
    name, value = pairs[0]
    if isinstance(value, dict):
        return Item(name, None, value, option)
    return Item(name, value, {}, option)


def chain_of(
    text: str, backend: str, network: Callable[[str], PolicySpec]
) -> CompressorChain | None:
    """Return the chain that ``--compress`` describes; None for ``none``.

    If it names no backend, the chain uses that of full precision, or OpenVINO instead of PyTorch;
    with ``auto`` the caller adds the fastest.
    ``network`` returns a student's spec by its name.
    """
    items = items_of(text, "--compress")
    if not items:
        return None
    chain = CompressorChain()
    for item in items:
        chain.add(_stage(item, network))
    if backend != AUTO and not any(isinstance(stage, Compile) for stage in chain.stages):
        chain.add(Compile(backend if backend in BACKENDS else "openvino"))
    chain.check()
    return chain


def _stage(item: Item, network: Callable[[str], PolicySpec]) -> Stage:
    def distill(student: object = None, **options: Any) -> Stage:
        return Distill(**options, student=None if student is None else network(str(student)))

    stage: Callable[..., Stage] = item.make
    if item.name == "distill":
        return stage(distill, "student", also=Distill)
    if item.name in STAGES:
        kind, first = STAGES[item.name]
        if kind is Compile and (item.settings.get(first) or item.value) not in BACKENDS:
            raise item.wrong(f"{first}={item.value!r:.80}", f"one of {', '.join(BACKENDS)}")
        return stage(kind, first)
    if item.name in OTHER_STAGES.names():
        return stage(OTHER_STAGES.find(item.name))
    raise ConfigError(
        f"--compress has the stage {item.name!r:.80}. Expected some of "
        f"{', '.join((*STAGES, *OTHER_STAGES.names()))}."
    )


def correctors_of(text: str) -> tuple[correction.Corrector, ...]:
    """Return the correctors that ``--learner correctors`` names."""
    correctors = []
    for item in items_of(text, "correctors"):
        if item.name not in CORRECTORS:
            raise ConfigError(
                f"correctors has {item.name!r:.80}. Expected some of {', '.join(CORRECTORS)}, "
                "with settings such as {vtrace: {rho: 1.0}}."
            )
        correctors.append(item.make(CORRECTORS[item.name]))
    if not correctors:
        raise ConfigError(
            f"correctors is {text!r}. Expected one of {', '.join(CORRECTORS)}; to learn without "
            "a correction, use uncorrected."
        )
    return tuple(correctors)


def monitor_of(text: str, head: Head, chain: CompressorChain | None) -> monitoring.Monitor | None:
    """Return the monitor that ``--monitor`` names; None for ``off`` or without compression."""
    items = items_of(text, "--monitor")
    if len(items) > 1:
        raise ConfigError(f"--monitor has {text!r:.80}. Expected one strategy, such as {{kl: 14}}.")
    for item in items:
        if item.name not in MONITORS or item.name == "off":
            raise ConfigError(
                f"--monitor has {item.name!r:.80}. Expected one of {', '.join(MONITORS)}, with "
                "settings such as {kl: 14}."
            )
    if not items or chain is None:
        return None
    strategy = _strategy(items[0], head, chain.parameters(), chain.safer())
    return monitoring.Monitor(monitoring.default_indicators(head), strategy)


def _strategy(
    item: Item, head: Head, parameters: Mapping[str, float], safer: Sequence[Mapping[str, Any]]
) -> Any:
    def switch(threshold: float = 14.0, good: float | None = None, **options: Any) -> Any:
        low = 0.25 * threshold if good is None else good
        if not 0.0 <= low < threshold:  # otherwise a small divergence would be the bad one
            raise ConfigError(
                f"--monitor has a divergence that is bad from {threshold} and good up to {low}. "
                "Expected bad above good, and none below 0."
            )
        return monitoring.SwitchPrecision(
            limits=(monitoring.Limit("kl_pi_mu_max", threshold, low),), **options
        )

    if item.name in ("watch", "default"):
        item.make(lambda: None)  # refuses settings
        return monitoring.default_strategy(head, safer) if item.name == "default" else None
    _needs(item, head, parameters)
    if item.name == "kl":
        return item.make(switch, "threshold", also=monitoring.SwitchPrecision)
    if item.name == "alpha":
        return item.make(monitoring.LinearAlpha)
    return item.make(monitoring.Staged)


def _needs(item: Item, head: Head, parameters: Mapping[str, float]) -> None:
    """Refuse a strategy that could neither change anything nor get readings."""
    if item.name == "kl" and "bits" not in parameters:
        raise ConfigError(
            "--monitor kl adjusts the bits, but no stage of --compress has them. Expected such a "
            "stage: {quantize: int8}."
        )
    if head == "q" and item.name in ("kl", "alpha"):
        raise ConfigError(
            f"--monitor {item.name} decides by a divergence of action probabilities, which action "
            "values do not have. Expected default, watch, staged or off."
        )


def _is_plain(hint: Any) -> bool:
    """Return whether a setting of this type can be written in YAML."""
    if get_origin(hint) in (Literal, dict):
        return True
    kinds = get_args(hint)
    if kinds:
        return any(_is_plain(kind) for kind in kinds if kind is not NoneType)
    return hint in (bool, int, float, str, dict, Path, Any, object)
