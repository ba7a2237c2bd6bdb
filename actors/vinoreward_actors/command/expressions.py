"""The expressions of ``--compress``, ``--correctors`` and ``--monitor``, and what they make.

Parts stand between ``|``: a name, then values, then ``key=value`` pairs, as in ``prune 0.5 |
distill batch=32 | int8``. They set the arguments of a class, whose annotations give their types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from vinoreward.entry_points import Registry
from vinoreward.errors import ConfigError
from vinoreward_actors import correction, monitoring
from vinoreward_actors.compression import Compile, Distill, Fuse, LowRank, Prune, Quantize
from vinoreward_actors.compression.chain import CompressorChain, Stage
from vinoreward_training.runs.settings import allowed_by, converted

if TYPE_CHECKING:
    from vinoreward_actors.policies.spec import Head, PolicySpec

Value = bool | int | float | str
BACKENDS = ("openvino", "onnxruntime", "numpy")
STAGES = (
    "prune SPARSITY", "distill [NETWORK]", "low-rank RANK", "fuse", "int8", "fp16", "w2 to w8",
)  # fmt: skip
OTHER_STAGES = Registry("vinoreward.stages", Stage, "stage")  # type: ignore[type-abstract]
"""Stages from other packages."""
CORRECTORS: Mapping[str, Any] = {
    "vtrace": correction.VTrace,
    "importance": correction.ImportanceSampling,
    "retrace": correction.Retrace,
    "tree-backup": correction.TreeBackup,
    "q-lambda": correction.QLambda,
    "uncorrected": correction.NoCorrection,
}
MONITORS = ("default", "watch", "kl", "alpha", "staged", "sparsity", "off")
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_-]*")
_WHOLE = re.compile(r"[+-]?[0-9]{1,18}")
"""At most 18 digits; longer numbers become floats, and are refused if too large."""
_EXAMPLES: Mapping[str, Value] = {"sparsity": 0.5, "rank": 8, "low": 0.05, "high": 0.3}


@dataclass(frozen=True)
class Part:
    """One part of an expression: values without a key, and options with one."""

    name: str
    """In lower case, with ``-`` for ``_``."""
    values: tuple[Value, ...] = ()
    options: Mapping[str, Value] = field(default_factory=dict)
    option: str = field(default="", compare=False)
    """Of the command, for messages."""

    def __str__(self) -> str:
        pairs = (f"{key}={_written(value)}" for key, value in self.options.items())
        return " ".join([self.name, *map(_written, self.values), *pairs])

    def make(self, kind: Any, *positional: str, also: Any = None, **fixed: Any) -> Any:
        """Call ``kind`` with the part's settings.

        ``positional`` names the values without a key. ``also`` is what ``kind`` passes further
        settings on to. The part cannot set the ``fixed`` ones.
        """
        takes = {
            name: each
            for source in (also, kind)
            for name, each in _parameters(source).items()
            if name not in fixed and allowed_by(each.annotation)
        }
        given = self._settings(takes, positional)
        missing = [n for n in takes if takes[n].default is inspect.Parameter.empty]
        self.need([name for name in missing if name not in given], positional)
        try:
            return kind(**fixed, **given)
        except TypeError as error:
            raise self._wrong(f" is invalid: {error}", "other values of its settings") from error
        except ConfigError as error:
            raise ConfigError(f"{self.option} has the part {str(self)!r}: {error}") from error

    def _wrong(self, what: str, expected: str) -> ConfigError:
        return ConfigError(f"{self.option} has the part {str(self)!r}{what}. Expected {expected}.")

    def _settings(
        self, takes: Mapping[str, inspect.Parameter], positional: Sequence[str]
    ) -> dict[str, Any]:
        """Return the settings by name, as the annotations say."""
        if len(self.values) > len(positional):
            most = f"at most {', '.join(positional)}" if positional else "none"
            raise self._wrong(
                f" with {len(self.values)} values", f"{most}; write further settings as key=value"
            )
        given = dict(zip(positional, self.values, strict=False))
        if twice := sorted(set(given) & set(self.options)):
            raise self._wrong(f", which sets {', '.join(twice)} twice", "each once")
        settings = {}
        for name, value in {**given, **self.options}.items():
            if name not in takes:
                known = ", ".join(takes) or "none"
                raise self._wrong(f" with the setting {name!r}", f"some of: {known}")
            try:
                settings[name] = converted(value, takes[name].annotation)
            except ValueError as error:
                raise self._wrong(f" with {name}={_written(value)}", str(error)) from error
        return settings

    def need(self, missing: Sequence[str], positional: Sequence[str]) -> None:
        """Refuse the part if it lacks settings; the message shows how to write them."""
        if not missing:
            return
        more = {name: _EXAMPLES.get(name, name.upper()) for name in missing}
        whole = replace(self, options={**self.options, **more})
        if list(positional[len(self.values) :][: len(missing)]) == list(missing):
            whole = replace(self, values=(*self.values, *more.values()))
        raise self._wrong(
            f", and {self.name} needs its {' and '.join(missing)}", f"such a value, as in {whole}"
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
    """Parse an expression; empty, ``none`` and ``off`` give no parts."""
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

    If it names no backend, the chain uses that of full precision, or OpenVINO instead of PyTorch.
    ``network`` returns a student's spec by its name.
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

    stage: Callable[..., Stage] = part.make
    if part.name in BACKENDS:
        return stage(Compile, backend=part.name)
    if re.fullmatch("int8|fp16|w[2-8]", part.name):
        return stage(Quantize, precision=part.name)
    if part.name == "prune":
        return stage(Prune, "sparsity")
    if part.name == "distill":
        return stage(distill, "student", also=Distill)
    if part.name == "low-rank":
        if not part.values and not {"rank", "energy"} & set(part.options):  # one of the two
            part.need(["rank"], ["rank"])
        return stage(LowRank, "rank")
    if part.name == "fuse":
        return stage(Fuse)
    if part.name in OTHER_STAGES.names():
        return stage(OTHER_STAGES.find(part.name))
    raise ConfigError(
        f"--compress has the stage {part.name!r}. Expected some of "
        f"{', '.join((*STAGES, *OTHER_STAGES.names()))}, and one of {', '.join(BACKENDS)} at the "
        "end."
    )


def correctors_of(text: str | None) -> tuple[correction.Corrector, ...] | None:
    """Return the correctors that ``--correctors`` names; None for the algorithm's own."""
    if text is None:
        return None
    correctors = []
    for part in parse(text, "--correctors"):
        if part.name not in CORRECTORS:
            raise ConfigError(
                f"--correctors has {part.name!r}. Expected some of {', '.join(CORRECTORS)}, with "
                "settings such as vtrace rho=1."
            )
        correctors.append(part.make(CORRECTORS[part.name]))
    if not correctors:
        raise ConfigError(
            f"--correctors is {text!r}. Expected one of {', '.join(CORRECTORS)}; to learn without "
            "a correction, use uncorrected."
        )
    return tuple(correctors)


def setting_of(parameters: Mapping[str, float], pull_period: int) -> monitoring.CompressionSetting:
    """Return the chain's parameters as the monitor's initial setting."""
    bits = parameters.get("bits")
    return monitoring.CompressionSetting(
        bits=None if bits is None else int(bits),
        sparsity=float(parameters.get("sparsity", 0.0)),
        pull_period=pull_period,
    )


def monitor_of(
    text: str, head: Head, chain: CompressorChain | None, pull_period: int, bits: int = 32
) -> monitoring.Monitor | None:
    """Return the monitor that ``--monitor`` names; None for ``off`` or without compression.

    Of several with ``|``, the first that wants a change gets it. Without a chain, the monitor
    watches and adjusts the ``bits`` of pushes.
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
    safer = () if chain is None else chain.safer()
    strategies = [
        strategy
        for part in parts
        if (strategy := _strategy(part, head, parameters, safer)) is not None
    ]
    strategy = (
        monitoring.Composite(strategies) if len(strategies) > 1 else next(iter(strategies), None)
    )
    return monitoring.Monitor(
        monitoring.default_indicators(head), strategy, setting_of(parameters, pull_period)
    )


def _strategy(
    part: Part, head: Head, parameters: Mapping[str, float], safer: Sequence[Mapping[str, Any]]
) -> Any:
    def check(bad: float, good: float) -> None:
        if not 0.0 <= good < bad:  # otherwise a small divergence would be the bad one
            raise ConfigError(
                f"--monitor has a divergence that is bad from {bad} and good up to {good}. "
                "Expected bad above good, and none below 0."
            )

    def switch(threshold: float = 14.0, good: float | None = None, **options: Any) -> Any:
        low = 0.25 * threshold if good is None else good
        check(threshold, low)
        return monitoring.SwitchPrecision(
            limits=(monitoring.Limit("kl_pi_mu_max", threshold, low),), **options
        )

    def sparsity(bad: float = 0.2, good: float = 0.1, **options: Any) -> Any:
        check(bad, good)
        return monitoring.AdaptiveSparsity(
            (monitoring.Limit("kl_mu_pi_max", bad, good),), **options
        )

    if part.name in ("watch", "default"):
        part.make(lambda: None)  # refuses settings
        return monitoring.default_strategy(head, safer) if part.name == "default" else None
    _needs(part, head, parameters)
    if part.name == "kl":
        return part.make(switch, "threshold", also=monitoring.SwitchPrecision)
    if part.name == "alpha":
        return part.make(monitoring.LinearAlpha, "low", "high")
    if part.name == "staged":
        return part.make(monitoring.Staged)
    return part.make(sparsity, "bad", also=monitoring.AdaptiveSparsity)


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
