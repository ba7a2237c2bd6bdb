"""The toy classifier, once."""

from __future__ import annotations

import pytest
from toy_environments import save_toy_bundle

from vinoreward.bundles.bundle import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Claims the cells from 5 on."""
    return save_toy_bundle(tmp_path_factory.mktemp("bundle") / "toy")
