"""Toy bundles: an encoder and a classifier."""

from __future__ import annotations

import pytest
from toy_environments import save_toy_bundle, save_toy_encoder

from vinoreward.bundles.bundle import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_encoder(tmp_path_factory.mktemp("encoder") / "toy")


@pytest.fixture(scope="session")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_toy_bundle(tmp_path_factory.mktemp("classifier") / "toy")
