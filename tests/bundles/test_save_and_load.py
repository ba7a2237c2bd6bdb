"""What is saved is what is loaded, and files that are not right are refused by name."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tiny_network import SPEC, golden_images, rewrite

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import BundleEditedError, BundleError, ModelNotFoundError

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def test_what_is_saved_is_loaded(bundle: Bundle) -> None:
    loaded = Bundle.load(bundle.path)
    assert loaded == bundle
    assert dataclasses.replace(loaded.spec, files={}) == SPEC
    assert sorted(loaded.spec.files) == ["golden.npz", "model.onnx"]
    assert np.array_equal(loaded.golden.images, golden_images())
    assert pickle.loads(pickle.dumps(loaded)) == loaded


def test_no_pickle_in_the_folder(bundle: Bundle) -> None:
    with zipfile.ZipFile(bundle.path / "golden.npz") as archive:
        assert sorted(archive.namelist()) == ["images.npy", "logits.npy"]
    assert sorted(item.name for item in bundle.path.iterdir()) == [
        "README.md",
        "bundle.json",
        "bundle.sha256",
        "golden.npz",
        "model.onnx",
    ]


def test_a_threshold_changed_by_hand_is_noticed(bundle: Bundle) -> None:
    path = bundle.path / "bundle.json"
    value = json.loads(path.read_text())
    value["decision"]["threshold"] = 0.01
    path.write_text(json.dumps(value))
    with pytest.raises(BundleEditedError, match="success_threshold"):
        Bundle.load(bundle.path)
    (bundle.path / "bundle.sha256").unlink()
    with pytest.raises(BundleEditedError, match="no recorded hash"):
        Bundle.load(bundle.path)


def test_an_edited_file_is_named_with_both_hashes(bundle: Bundle) -> None:
    old = bundle.spec.files["model.onnx"]
    path = bundle.path / "model.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    new = hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(BundleEditedError, match=rf"model\.onnx.*{new}.*{old}.*restore"):
        Bundle.load(bundle.path)


def test_no_bundle_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"installed bundles.*panda-hover-classifier"):
        Bundle.load(tmp_path / "nothing")
    with pytest.raises(BundleError, match=r"no bundle\.json"):
        Bundle.load(tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(BundleError, match="from_model"):
        Bundle.load(file)


def test_a_registered_name_is_found(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A package as anyone may install it: a module and its entry point.
    site = tmp_path / "site"
    (site / "acme-1.0.dist-info").mkdir(parents=True)
    (site / "acme-1.0.dist-info" / "METADATA").write_text("Name: acme\nVersion: 1.0\n")
    (site / "acme-1.0.dist-info" / "entry_points.txt").write_text(
        "[vinoreward.bundles]\nacme = acme_rewards:where\nlost = acme_rewards:lost\n"
        "text = acme_rewards:text\nbroken = acme_rewards:missing\n"
    )
    (site / "acme_rewards.py").write_text(
        "from pathlib import Path\n"
        f"def where(): return Path({str(bundle.path)!r})\n"
        "def lost(): return Path('/nowhere')\n"
        "def text(): return 'somewhere'\n"
    )
    monkeypatch.syspath_prepend(str(site))
    assert Bundle.load("acme") == bundle
    with pytest.raises(BundleError, match=r"/nowhere.*reinstall"):
        Bundle.load("lost")
    with pytest.raises(BundleError, match=r"pathlib\.Path"):
        Bundle.load("text")
    with pytest.raises(BundleError, match="does not import"):
        Bundle.load("broken")


def test_a_link_out_of_the_folder_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    outside = tmp_path / "outside.onnx"
    (bundle.path / "model.onnx").rename(outside)
    (bundle.path / "model.onnx").symlink_to(outside)
    with pytest.raises(BundleError, match="is a link"):
        Bundle.load(bundle.path)


def test_a_broken_bundle_json_is_refused(bundle: Bundle) -> None:
    (bundle.path / "model.onnx").unlink()
    with pytest.raises(ModelNotFoundError, match=r"no model\.onnx"):
        Bundle.load(bundle.path)
    rewrite(bundle, lambda spec: spec["files"].pop("model.onnx"))
    with pytest.raises(BundleError, match=r"Expected model\.onnx"):
        Bundle.load(bundle.path)
    for text, message in (
        (b"\xff\xfe", "not valid JSON"),
        (b'{"schema_version": 1, "schema_version": 1}', "stands twice"),
        (b" " * (1 << 20) + b"{}", "1048578 bytes, more than"),
    ):
        (bundle.path / "bundle.json").write_bytes(text)
        with pytest.raises(BundleError, match=message):
            Bundle.load(bundle.path)
