"""Which precision is meant."""

from __future__ import annotations

from pathlib import Path

from vinoreward.bundles.locate import int8_name
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError

INT8_BACKENDS = ("openvino", "onnxruntime")


def resolve(spec: BundleSpec, path: Path, backend: str, precision: str) -> str:
    """Return ``"fp32"``, ``"bf16"`` or ``"int8"``, see ``Bundle.resolve_precision``."""
    quantization = spec.quantization
    ready = quantization is not None and quantization.passed and int8_name(spec) is not None
    if precision == "auto":
        return "int8" if ready and backend in INT8_BACKENDS else "fp32"
    if precision not in ("fp32", "bf16", "int8"):
        raise ConfigError(
            f"precision is {precision!r}. Expected auto, fp32, bf16 or int8; choose one."
        )
    if precision == "int8" and not ready:
        what = "decisions flipped" if spec.kind == "classifier" else "vectors moved too far"
        found = (
            f"its INT8 network failed the gate ({quantization.flips} of {quantization.frames} "
            f"{what}, allowed are {quantization.max_flip_rate:.2%})"
            if quantization is not None and not quantization.passed
            else "it has no INT8 network"
        )
        raise ConfigError(
            f"precision 'int8' was asked of the bundle {spec.name!r}, but {found}. "
            "Expected one that passed the gate; use precision='auto' or 'fp32', or run: "
            f"vinoreward quantize --bundle {path}"
        )
    if precision == "int8" and backend == "torch":
        raise ConfigError(
            "precision 'int8' was asked of the torch backend, which runs FP32. Expected one of "
            f"{', '.join(INT8_BACKENDS)}; choose another backend or precision='auto'."
        )
    return precision
