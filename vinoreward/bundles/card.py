"""The model card: what a person should know about a bundle, as Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vinoreward.bundles.schema import BundleSpec, Encoding


def model_card(spec: BundleSpec, pictures: Sequence[str] = ()) -> str:
    """Return the text of ``README.md`` for a bundle, with these files of ``pictures/``."""
    sections = [
        f"# {spec.name}\n\n{_summary(spec)}",
        "## Use it\n\n```python\nimport vinoreward\n\n"
        'classifier = vinoreward.Classifier("path/to/this/folder")\n'
        "probabilities = classifier.probability(pictures)  # (N, height, width, 3) uint8 RGB\n```"
        if spec.kind == "classifier"
        else "## Use it\n\n```python\nimport vinoreward\n\n"
        'encoder = vinoreward.Encoder("path/to/this/folder")\n'
        "latents = encoder.encode(pictures)  # (N, height, width, 3) uint8 RGB\n\n"
        "# or around an environment whose observation is or contains the picture\n"
        'env = vinoreward.EncodedObservation(env, "path/to/this/folder")\n```',
        "## Picture\n\n" + _table(_picture(spec)),
    ]
    if spec.encoding is None:
        sections.append("## Decision\n\n" + _table(_decision(spec)))
    else:
        sections.append("## Latent vector\n\n" + _table(_encoding(spec.encoding)))
    sections.append("## INT8\n\n" + _quantization(spec))
    files = {name: f"`{digest}`" for name, digest in spec.files.items()}
    tables = {"Measured": spec.metrics, "Data": spec.dataset, "Made with": spec.versions}
    for title, values in (tables | {"Files": files}).items():
        if values:
            sections.append(f"## {title}\n\n" + _table(_flat(values)))
    if pictures:
        shown = "\n\n".join(f"![{name}](pictures/{name})" for name in pictures)
        sections.append(
            "## Pictures\n\n`golden.png` shows the frames with recorded outputs, which are run "
            f"whenever the bundle is loaded.\n\n{shown}"
        )
    return "\n\n".join(sections) + "\n"


def _summary(spec: BundleSpec) -> str:
    if spec.kind == "encoder":
        return f"An encoder: pictures to {spec.latent_size} numbers."
    others = ", ".join(f"`{_plain(label)}`" for label in spec.labels)
    built = f" Architecture: {spec.architecture}." if spec.architecture else ""
    return (
        f"A success classifier with the labels {others} (in the order of its outputs); "
        f"`{_plain(spec.success_label)}` means success.{built}"
    )


def _picture(spec: BundleSpec) -> dict[str, Any]:
    picture = spec.picture
    rows: dict[str, Any] = {
        "size (height x width)": f"{picture.height} x {picture.width}",
        "colour order given": "RGB",
        "colour order of the network": picture.color_order,
        "crop (top, left, height, width)": list(picture.crop) if picture.crop else "none",
        "resize": picture.resize,
        "mean": list(picture.mean),
        "std": list(picture.std),
    }
    return rows | {f"scene: {key}": value for key, value in picture.scene.items()}


def _decision(spec: BundleSpec) -> dict[str, Any]:
    decision = spec.decision
    rows: dict[str, Any] = {
        "success when the probability is at least": decision.threshold,
        "logits are divided by (temperature)": decision.temperature,
    }
    if decision.int8_band is not None:
        rows["with INT8, FP32 looks again within (log-odds of the threshold)"] = decision.int8_band
    return rows | {f"chosen for: {key}": item for key, item in _flat(decision.chosen_for).items()}


def _encoding(encoding: Encoding) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "dimensions": len(encoding.low),
        "posterior": "mean and log variance" if encoding.posterior else "none: a plain autoencoder",
        "clipped to at least": list(encoding.low),
        "clipped to at most": list(encoding.high),
    }
    if encoding.std is not None:
        rows["posterior's standard deviation"] = list(encoding.std)
    return rows


def _quantization(spec: BundleSpec) -> str:
    found = spec.quantization
    if found is None:
        return "No INT8 network. Make one with `vinoreward quantize`."
    look = (
        "The INT8 network decides where it is sure. A picture whose log-odds lie within "
        f"{found_band:.3g} of the threshold's is looked at again by the FP32 network, whose answer "
        "counts; the flips below are those that remain.\n\n"
        if (found_band := spec.decision.int8_band)
        else ""
    )
    counted = (
        "decisions flipped"
        if spec.kind == "classifier"
        else "frames whose vector moves by more than one unit"
    )
    return look + _table(
        {
            "gate": "passed" if found.passed else "not passed: INT8 is never chosen",
            counted: f"{found.flips} of {found.frames} ({found.flip_rate:.3%})",
            "allowed": f"{found.max_flip_rate:.3%}",
            "method": found.method,
        }
        | _flat(found.detail)
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one level with dotted names."""
    rows: dict[str, Any] = {}
    for key, item in values.items():
        if isinstance(item, Mapping):
            rows |= _flat(item, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = item
    return rows


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {_plain(key)} | {_shown(item)} |" for key, item in rows.items()]
    return "\n".join(["| what | value |", "| --- | --- |", *lines])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value) or "none"
    return _plain(str(value))


def _plain(text: str) -> str:
    """Keep a text from breaking the table around it."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
