"""The expressions of ``--compress``, ``--correctors`` and ``--monitor``, and what they make.

An expression has parts with ``|`` between them. A part is a name, then values, then ``key=value``
pairs, as in ``prune 0.5 | distill batch=32 | int8``. They are the settings of a class: its
annotations say which there are and of what types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from vinoreward_training.runs.settings import allowed_by, converted

if TYPE_CHECKING:
    from vinoreward.correction import Corrector
    from vinoreward.policies.spec import Head, PolicySpec

Value = bool | int | float | str
BACKENDS = ("openvino", "onnxruntime", "numpy")
STAGES = (
    "prune SPARSITY", "distill [NETWORK]", "low-rank RANK", "fuse", "int8", "fp16", "w2 to w8",
)  # fmt: skip
OTHER_STAGES = Registry("vinoreward.stages", Stage, "stage")  # type: ignore[type-abstract]
"""Stages from other packages."""
CORRECTORS: Mapping[str, Any] = {
    "vtrace": VTrace,
    "importance": ImportanceSampling,
    "retrace": Retrace,
    "tree-backup": TreeBackup,
    "q-lambda": QLambda,
    "uncorrected": NoCorrection,
}
MONITORS = ("default", "watch", "kl", "alpha", "staged", "sparsity", "off")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
"""At most 18 digits; longer numbers become floats, and are refused if too large."""
_EXAMPLES: Mapping[str, Value] = {"sparsity": 0.5, "rank": 8, "low": 0.05, "high": 0.3}


@dataclass(frozen=True)
class Part:
    """One part of an expression.

    Attributes:
        name: in lower case, with ``-`` for ``_``.
        values: without a key.
        options: with a key.
        option: of the command, for messages.
    """

    name: str
    values: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    option: str = field(default="", compare=False)

    def __str__(self) -> str:
        pairs = (f"{key}={_written(value)}" for key, value in self.options.items())
        return " ".join([self.name, *map(_written, self.values), *pairs])

    def make(self, kind: Any, *positional: str, also: Any = None, **fixed: Any) -> Any:
        """Call ``kind`` with the part's settings.

        Args:
            kind: a class or function.
            positional: names of the values without a key.
            also: a callable to which ``kind`` passes further settings on.
            fixed: arguments of ``kind`` that the part cannot set.

        Raises:
            ConfigError: more values than names, an unknown setting, or an invalid value.
        """
        parameters = _parameters(kind)
        takes = {
            name: each.annotation
            for source in (also, kind)
            for name, each in _parameters(source).items()
            if name not in fixed and allowed_by(each.annotation)
        }
        given = self._settings(takes, positional)
        required = [name for name, each in parameters.items() if each.default is each.empty]
        self.need([name for name in required if name not in (*given, *fixed)], positional)
        try:
            return kind(**fixed, **given)
        except TypeError as error:
            raise ConfigError(
                f"{self._said()} is invalid: {error}. Expected other values of its settings."
            ) from error
        except ConfigError as error:
            raise ConfigError(f"{self._said()}: {error}") from error

    def _said(self) -> str:
        return f"{self.option} has the part {str(self)!r}"

    def _settings(self, takes: Mapping[str, Any], positional: Sequence[str]) -> dict[str, Any]:
        """Return the settings by name, as the annotations say."""
        if len(self.values) > len(positional):
            most = f"at most {', '.join(positional)}" if positional else "none"
            raise ConfigError(
                f"{self._said()} with {len(self.values)} values. Expected {most}; write further "
                "settings as key=value."
            )
        given = dict(zip(positional, self.values, strict=False))
        if twice := sorted(set(given) & set(self.options)):
            raise ConfigError(
                f"{self._said()}, which sets {', '.join(twice)} twice. Expected each once."
            )
        found = {}
        for name, value in {**given, **self.options}.items():
            if name not in takes:
                raise ConfigError(
                    f"{self._said()} with the setting {name!r}. Expected some of: "
                    f"{', '.join(takes) or 'none'}."
                )
            try:
                found[name] = converted(value, takes[name])
            except ValueError as error:
                raise ConfigError(
                    f"{self._said()} with {name}={_written(value)}. Expected {error}."
                ) from error
        return found

    def need(self, missing: Sequence[str], positional: Sequence[str]) -> None:
        """Refuse the part if it lacks settings; the message shows how to write them."""
        if not missing:
            return
        more = {name: _EXAMPLES.get(name, name.upper()) for name in missing}
        whole = replace(self, options={**self.options, **more})
        if list(positional[len(self.values) :][: len(missing)]) == list(missing):
            whole = replace(self, values=(*self.values, *more.values()))
        raise ConfigError(
            f"{self._said()}, and {self.name} needs its {' and '.join(missing)}. Expected such a "
            f"value, as in {whole}."
        )


def _written(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


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


def parse(text: str, option: str) -> list[Part]:
    """Parse an expression; empty, ``none`` and ``off`` give no parts.

    Args:
        text: such as ``"prune 0.5 | distill | int8 | openvino"``.
        option: of the command, for messages.

    Raises:
        ConfigError: an empty part, an invalid name, a value after a pair, or a repeated key.
    """
    if text.strip().lower() in ("", "none", "off"):
        return []
    return [_part(piece, text, option) for piece in text.split("|")]


def _part(piece: str, text: str, option: str) -> Part:
    words = piece.split()
    if not words or not _NAME.fullmatch(words[0]):
        raise ConfigError(
            f"{option} has the part {piece.strip()!r} in {text!r}. Expected a name, then values "
            "such as 0.5 or key=value, with | between parts."
        )
    values: list[Value] = []
    options: dict[str, Value] = {}
    for word in words[1:]:
        key, equals, value = word.partition("=")
        if not equals and not options:
            values.append(_read(word))
        elif equals and _NAME.fullmatch(key) and value and "=" not in value and key not in options:
            options[key] = _read(value)
        else:
            raise ConfigError(
                f"{option} has {word!r} in {piece.strip()!r}. Expected values first, then each "
                "key=value once."
            )
    return Part(words[0].lower().replace("_", "-"), tuple(values), options, option)


def _read(word: str) -> Value:
    if word.lower() in ("true", "false"):
        return word.lower() == "true"
    if _WHOLE.fullmatch(word):
        return int(word)
    try:
        return float(word)
    except ValueError:
        return word


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
        chain.add(Compile(backend if backend in BACKENDS else "openvino"))
    chain.check()
    return chain


def _stage(part: Part, network: Callable[[str], PolicySpec]) -> Stage:
    def distill(student: object = None, **options: Any) -> Stage:
        return Distill(**options, student=None if student is None else network(str(student)))

    made: Stage
    if part.name in BACKENDS:
        made = part.make(Compile, backend=part.name)
    elif re.fullmatch("int8|fp16|w[2-8]", part.name):
        made = part.make(Quantize, precision=part.name)
    elif part.name == "prune":
        made = part.make(Prune, "sparsity")
    elif part.name == "distill":
        made = part.make(distill, "student", also=Distill)
    elif part.name == "low-rank":
        if not part.values and not {"rank", "energy"} & set(part.options):  # one of the two
            part.need(["rank"], ["rank"])
        made = part.make(LowRank, "rank")
    elif part.name == "fuse":
        made = part.make(Fuse)
    elif part.name in OTHER_STAGES.names():
        made = part.make(OTHER_STAGES.find(part.name))
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

    found = []
    for part in parse(text, "--correctors"):
        if part.name not in CORRECTORS:
            raise ConfigError(
                f"--correctors has {part.name!r}. Expected some of {', '.join(CORRECTORS)}, with "
                "settings such as vtrace rho=1."
            )
        found.append(part.make(CORRECTORS[part.name]))
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
    made = [_strategy(part, head, parameters, safer) for part in parts]
    strategies = [each for each in made if each is not None]
    strategy = Composite(strategies) if len(strategies) > 1 else next(iter(strategies), None)
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

    if part.name in ("watch", "default"):
        part.make(lambda: None)  # refuses settings
        return default_strategy(head, safer) if part.name == "default" else None
    _needs(part, head, parameters)
    if part.name == "kl":
        return part.make(switch, "threshold", also=SwitchPrecision)
    if part.name == "alpha":
        return part.make(LinearAlpha, "low", "high")
    if part.name == "staged":
        return part.make(Staged)
    return part.make(sparsity, "bad", also=AdaptiveSparsity)


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
