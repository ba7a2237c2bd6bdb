"""Other people's classifiers: what their outputs are, and a description of them."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.golden import made_up_images
from vinoreward.bundles.importers.facts import ClassifierFacts, NetworkFile, Run, describing
from vinoreward.bundles.schema import ONE_COLUMN, BundleSpec, Decision, Output
from vinoreward.errors import ConfigError

# Operators of OpenVINO that pass on the values of their first input, or means of them ...
_MOVES = frozenset(
    """
    AvgPool Clamp Convert FakeQuantize Gather Identity Negative ReduceMean Relu Reshape Result Slice
    Split Squeeze StridedSlice Transpose Unsqueeze VariadicSplit
    """.split()  # noqa: SIM905 - read as words
)
# ... those that join inputs, or as 1 - p and a dequantization join one with constants ...
_JOINS = frozenset(("Add", "Concat", "Maximum", "Minimum", "Multiply", "Subtract"))
# ... those that make probabilities, and those that make numbers without bounds.
_HEADS = frozenset(("Sigmoid", "SoftMax", "Softmax"))
_LINEAR = frozenset(("Convolution", "GroupConvolution", "MatMul"))


def describe(path: Path, facts: ClassifierFacts, run: Run, *, trusted: bool) -> BundleSpec:
    """Return the description of a classifier's file; errors as of ``Bundle.from_model``."""
    network = NetworkFile(path, trusted=trusted)
    index, given = facts.get("output_index", 0), facts.get("output")
    columns = network.columns(index)
    labels = tuple(facts.get("labels") or network.info.get("labels", ()))
    success_label = facts.get("success_label")
    image = network.image_spec(facts, labels=labels or None, success_label=success_label)
    makers = _makers(network.model.output(index))
    output = given or _output_of(columns, makers)
    _check_labels(path, columns, output, labels)
    with describing(path):
        decision = Decision(threshold=network.info.get("threshold", 0.5))
        if (threshold := facts.get("threshold")) is not None:
            decision = Decision(threshold=threshold, chosen_for={"chosen by": "the caller"})
        spec = BundleSpec(
            name=facts.get("name") or path.stem,
            labels=labels,
            success_label=cast("str", success_label),
            image=image,
            decision=decision,
            output=output,
            output_index=index,
        )
    if given is None:
        _check_values(path, spec, makers, run(spec, made_up_images(image)))
    return spec


def _output_of(columns: int | None, makers: AbstractSet[str]) -> Output:
    if makers and makers <= _HEADS:
        return "probability" if columns == 1 else "probabilities"
    return "logit" if columns == 1 else "logits"


def _check_labels(path: Path, columns: int | None, output: Output, labels: tuple[str, ...]) -> None:
    """Raise ConfigError unless a graph of such an output has these labels."""
    single = output in ONE_COLUMN
    if single and len(labels) != 2:
        raise ConfigError(
            f"{path} has one output, but there are {len(labels)} labels {labels}. Expected two; "
            "give `labels` with that of a low output first and that of a high one second.",
            field="labels",
        )
    if columns not in (None, 1 if single else len(labels)):
        expected = f"one output for {output!r}" if single else "one label per output"
        raise ConfigError(
            f"{path} has {columns} outputs, but there are {len(labels)} labels {labels}. Expected "
            f"{expected}; give `labels` in the order of the outputs, or correct `output`.",
            field="labels",
        )


def _makers(end: Any) -> set[str]:
    """Return the operators that make the values of an output, which later ones only pass on."""
    makers: set[str] = set()
    seen: set[str] = set()
    waiting = [end.node]
    while waiting:
        node = waiting.pop()
        kind, name = node.get_type_name(), node.get_name()
        if name in seen or kind == "Constant":
            continue
        seen.add(name)
        sources = [node.input_value(place).get_node() for place in range(node.get_input_size())]
        if kind in _MOVES:
            waiting.append(sources[0])
        elif kind in _JOINS:
            waiting += sources
        else:
            makers.add(kind)
    return makers


def _check_values(
    path: Path, spec: BundleSpec, makers: AbstractSet[str], values: NDArray[np.float32]
) -> None:
    """Raise ConfigError if a network's outputs for a few images are not of the assumed kind.

    ``makers`` are the operators that make them. Numbers of a linear layer may happen to lie between
    0 and 1, but do not sum to 1.
    """
    output = spec.output
    within = bool((values >= 0).all() and (values <= 1).all())
    if "prob" in output and not within:
        found = f"from {values.min():.4g} to {values.max():.4g} behind a sigmoid or softmax"
    elif output == "logit" and within and not makers <= _LINEAR:
        found = "from 0 to 1"
    elif output == "logits" and within and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        found = "from 0 to 1 that sum to 1 in every row"
    else:
        return
    kinds = ("probability", "logit") if output in ONE_COLUMN else ("probabilities", "logits")
    raise ConfigError(
        f"{path} returns numbers {found}. Expected to know whether these are probabilities or "
        f"logits, which its graph does not say; give `output={kinds[0]}` or `output={kinds[1]}`.",
        field="output",
    )
