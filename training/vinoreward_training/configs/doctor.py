"""Options of ``vinoreward doctor``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class DoctorConfig:
    """Show what is installed, which backends and devices work, and how to add what is missing.

    Exits with 0 if the core works (wrapping your own environment with a bundle), else with 1.

    Examples:
        vinoreward doctor
        vinoreward doctor --bundle runs/hover-classifier/bundle
        vinoreward doctor --json doctor.json
    """

    bundle: str | None = None
    """Bundle whose golden frames run on every backend; None: every installed one."""
    json: Path | None = None
    """Also write the results to this file."""
