"""Model cards: a bundle's ``README.md``, as people and the Hugging Face Hub read it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from vinoreward.bundles.schema import ONE_COLUMN, BundleSpec

_USES = {
    "classifier": """import vinoreward

classifier = vinoreward.Classifier("path/to/this/folder")
probabilities = classifier.probability(images)  # (N, height, width, 3) uint8 RGB""",
    "encoder": """import vinoreward

encoder = vinoreward.Encoder("path/to/this/folder")
latents = encoder.encode(images)  # (N, height, width, 3) uint8 RGB

# or around an environment whose observation is or contains the image
env = vinoreward.EncodedObservation(env, "path/to/this/folder")""",
}


def front_matter(spec: BundleSpec) -> str:
    """Return what the Hugging Face Hub reads at the beginning of a model card: a block of YAML."""
    task = "image-classification" if spec.kind == "classifier" else "image-feature-extraction"
    kind = "reward-model" if spec.kind == "classifier" else "state-encoder"
    facts: dict[str, Any] = {
        "license": "unknown",  # its maker's choice
        "library_name": "vinoreward",
        "pipeline_tag": task,
        "tags": [kind, "reinforcement-learning", "robotics", "gymnasium", "openvino"],
    }
    test = spec.metrics.get("test")
    rates = {
        name: test[name]
        for name in ("recall", "precision", "false_positive_rate")
        if isinstance(test, Mapping) and isinstance(test.get(name), float) and 0 <= test[name] <= 1
    }
    if rates:
        facts["metrics"] = [name for name in rates if name in ("recall", "precision")]
        results = {
            "task": {"type": task},
            "dataset": {"type": "images", "name": "held-out frames of its own data"},
            "metrics": [{"type": name, "value": value} for name, value in rates.items()],
        }
        facts["model-index"] = [{"name": spec.name, "results": [results]}]
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n\n"


def model_card(spec: BundleSpec, images: Sequence[str] = ()) -> str:
    """Return the text of ``README.md`` for a bundle, with these files of ``images/``."""
    described = yaml.safe_dump(spec.to_dict(), sort_keys=False, default_flow_style=None, width=100)
    sections = [
        f"{front_matter(spec)}# {spec.name}\n\n{_summary(spec)}",
        f"## Use it\n\n```python\n{_USES[spec.kind]}\n```",
        f"## What `bundle.json` says\n\n```yaml\n{described}```",
    ]
    if images:
        shown = "\n\n".join(f"![{name}](images/{name})" for name in images)
        sections.append(
            "## Images\n\n`golden.png` shows the frames with recorded outputs, which are run "
            f"whenever the bundle is loaded.\n\n{shown}"
        )
    return "\n\n".join(sections) + "\n"


def _summary(spec: BundleSpec) -> str:
    size = f"images of {spec.image.height} x {spec.image.width} pixels (height x width)"
    if spec.kind == "encoder":
        text = f"An encoder: {size} to {spec.latent_size} numbers."
    else:
        one = spec.output in ONE_COLUMN
        text = (
            f"A success classifier of {size} with the labels "
            f"{', '.join(f'`{label}`' for label in spec.labels)} "
            f"({'its one output is for the second' if one else 'in the order of its outputs'}); "
            f"`{spec.success_label}` means success."
        )
    if spec.architecture:
        text += f" Architecture: {spec.architecture}."
    if spec.image.views:
        text += f" Views from top to bottom: {', '.join(map(str, spec.image.views))}."
    gate = spec.quantization
    if gate is None:
        return f"{text} There is no INT8 network; make one with `vinoreward quantize`."
    what = "decisions flipped"
    if spec.kind == "encoder":
        what = "frames whose vector moves by more than one unit"
    used = "passed its gate" if gate.passed else "did not pass its gate and is never chosen"
    text += (
        f" The INT8 network {used}; {what}: {gate.flips} of {gate.frames}, "
        f"{gate.max_flip_rate:.3%} allowed."
    )
    if band := spec.decision.int8_band:
        text += (
            f" An image whose log-odds lie within {band:.3g} of the threshold's is scored again "
            "by the FP32 network, whose answer counts; these flips are those that remain."
        )
    return text
