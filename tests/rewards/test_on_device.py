"""A classifier for tensors says what the one for arrays says."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from graphs_on_cpu import recorded_on_cpu
from safetensors.torch import load_file, save
from torch import nn

from vinoreward import Bundle, Classifier
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.torch_classifiers import rebuild
from vinoreward.backends.torch_networks import (
    WithPreprocess,
    with_rectifiers_fused,
)
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import Progress
from vinoreward.errors import InputError

NAME = "panda-hover-classifier"


def make_images(bundle: Bundle) -> Any:
    """Return the golden frames, noisier ones, a dead camera's, and blends of success and failure:
    scores on both sides of the threshold, close to it and far from it."""
    golden = bundle.golden.images[::4]
    draw = np.random.default_rng(0)
    noisy = np.clip(golden + draw.normal(0, 12, golden.shape), 0, 255).astype(np.uint8)
    order = np.argsort(bundle.golden.logits[:, 1])
    worst, best = bundle.golden.images[order[[0, -1]]]
    blends = [
        (share * best + (1 - share) * worst).astype(np.uint8) for share in np.linspace(0.3, 1, 12)
    ]
    return np.concatenate([golden, noisy, np.zeros_like(golden[:1]), np.stack(blends)])


@pytest.mark.parametrize(
    ("options", "precision"),
    [
        ({"threshold": 0.9, "exit_threshold": 0.1}, "fp32"),
        ({}, "fp16"),
    ],
)
def test_it_says_the_same(options: dict[str, Any], precision: str) -> None:
    bundle = Bundle.load(NAME)
    seen = make_images(bundle)
    with (
        Classifier(bundle, backend="torch", **options) as exact,
        Classifier(bundle, backend="torch", precision=precision, **options) as classifier,
    ):
        expected = exact.predict(seen)
        found = classifier.predict(torch.tensor(seen))
    near = {"fp32": 1e-4, "fp16": 5e-3}[precision]
    np.testing.assert_allclose(found.log_odds, expected.log_odds, rtol=near, atol=10 * near)
    assert found.ood_score is not None
    np.testing.assert_allclose(found.ood_score, expected.ood_score, rtol=1e-4)
    assert 0 < (found.ood_score > 1).sum() < len(seen)


def test_means_over_shifts_count_near_the_threshold_alone() -> None:
    bundle = Bundle.load(NAME)
    band = bundle.spec.decision.translation_band
    assert band is not None
    decision = dataclasses.replace(bundle.spec.decision, translation_band=None)
    plain = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=decision))
    seen = torch.tensor(make_images(bundle))
    judged = []
    for one in (bundle, plain):
        with Classifier(one, backend="torch") as classifier:
            judged.append(classifier.predict(seen).log_odds.numpy())
    changed = judged[0] != judged[1]
    assert 0 < changed.sum() < len(seen)
    edge = np.log(bundle.spec.decision.threshold / (1 - bundle.spec.decision.threshold))
    assert (np.abs(judged[1] - edge)[changed] < band).all()


def test_the_closest_are_scored_again_where_not_all_can_be() -> None:
    bundle = Bundle.load(NAME)
    one = make_images(bundle)  # of which some are close, as seen above
    seen = np.concatenate([one, np.repeat(bundle.golden.images[:1], 80, axis=0)])
    with Classifier(bundle, backend="torch") as classifier:
        expected = classifier.predict(one).log_odds
        found = classifier.predict(torch.tensor(seen)).log_odds[: len(one)]
    np.testing.assert_allclose(found, expected, atol=1e-3)


def test_on_cuda_the_recorded_work_is_replayed_for_its_number_of_images(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bundle = Bundle.load(NAME)
    seen = torch.tensor(make_images(bundle))
    with (
        Classifier(bundle, backend="torch") as plain,
        Classifier(bundle, backend="torch") as replayed,
    ):
        parts = [seen[:8], seen[8:16], seen[:7]]
        expected = [plain.predict(part) for part in parts]
        graphs = recorded_on_cpu(monkeypatch)
        for part, judged in zip(parts, expected, strict=True):
            for one, other in zip(replayed.predict(part), judged, strict=True):
                torch.testing.assert_close(one, other)
    assert [(len(graph.batch), graph.replays) for graph in graphs] == [(8, 2)]


def test_another_backend_is_refused() -> None:
    with Classifier(NAME) as classifier, pytest.raises(InputError, match=r"a Tensor.*numpy array"):
        classifier.predict(torch.zeros((1, 96, 128, 3), dtype=torch.uint8))


class _Asks(nn.Module):
    """A network whose course depends on numbers."""

    def forward(self, planes: torch.Tensor) -> torch.Tensor:
        return planes if planes.sum() > 0 else -planes


def test_rectifiers_are_fused_where_that_changes_nothing() -> None:
    torch.manual_seed(0)
    shared = nn.Conv2d(4, 4, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Conv2d(3, 4, 3, stride=2), nn.Conv2d(4, 4, 3, padding="same")
            self.three, self.relu = shared, nn.ReLU()

        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            planes = self.relu(self.two(self.relu(self.one(planes))))
            both = self.three(planes)
            return both + self.relu(both)  # of use without the rectifier too

    net, planes = Net().eval(), torch.randn(2, 3, 9, 9)
    expected = net(planes)
    fused = with_rectifiers_fused(net)
    torch.testing.assert_close(fused(planes), expected)
    kept = [one for one in fused.graph.nodes if "relu" in str(one.target)]  # type: ignore[union-attr]
    assert len(kept) == 2
    twice = nn.Sequential(shared, nn.ReLU(), shared)  # behind the second there is none
    seen = torch.randn(2, 4, 5, 5)
    torch.testing.assert_close(with_rectifiers_fused(twice)(seen), twice(seen))
    asks = _Asks()
    assert with_rectifiers_fused(asks) is asks


def with_column(folder: Path) -> Bundle:
    """The shipped classifier with a third column, its success logit."""
    shipped = Bundle.load(NAME)
    state = load_file(shipped.path / "model.safetensors")
    for name in ("classifier.0.weight", "classifier.0.bias"):
        state[name] = torch.cat([state[name], state[name][1:]])
    spec = dataclasses.replace(
        shipped.spec, progress=Progress(horizon=9, scale=0.1, offset=0.5), quantization=None
    )
    image, network = spec.image, rebuild("squeezenet1_1", 3, state)
    module = WithPreprocess(network.eval(), image.mean, image.std)
    export_onnx(module, folder / "model.onnx", image.height, image.width)
    files: dict[str, Any] = {
        name: shipped.path / name for name in shipped.spec.files if name.startswith("guard")
    }
    files |= {"model.onnx": folder / "model.onnx", "model.safetensors": save(state)}
    logits = shipped.golden.logits[:, [0, 1, 1]]
    return Bundle.load(save_bundle(folder / "column", spec, files, shipped.golden.images, logits))


def test_progress_is_the_same(tmp_path: Path) -> None:
    bundle = with_column(tmp_path)
    images = make_images(bundle)
    with Classifier(bundle, backend="torch") as classifier:
        host, device = classifier.predict(images), classifier.predict(torch.tensor(images))
        logits = classifier.backend.infer(images)
    expected = np.clip(0.1 * logits[:, 1] + 0.5, 0, 1)
    assert host.progress == pytest.approx(expected, abs=1e-5)
    assert 0 < (expected == 0).sum() < len(expected) and len(np.unique(expected)) > 10
    np.testing.assert_allclose(device.progress, host.progress, atol=1e-3)
    np.testing.assert_allclose(device.log_odds, host.log_odds, rtol=1e-4, atol=1e-3)
