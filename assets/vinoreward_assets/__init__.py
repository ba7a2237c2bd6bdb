"""Baked scene assets and trained bundles, read with :mod:`importlib.resources`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path


def folder() -> Path:
    """Return the folder that holds the assets."""
    return Path(str(resources.files(__name__)))


def panda_hover_classifier() -> Path:
    """Return the folder of the shipped hover classifier (a bundle)."""
    return folder() / "panda-hover-classifier"


def panda_hover_encoder() -> Path:
    """Return the folder of the shipped hover state encoder (a bundle)."""
    return folder() / "panda-hover-encoder"
