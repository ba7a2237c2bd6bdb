"""The examples in docs are run as they stand."""

from __future__ import annotations

import pickle
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vinoreward.backends.base import Backend
from vinoreward.bundles.bundle import Bundle


@pytest.fixture
def example(project_root: Path) -> type[Backend]:
    text = (project_root / "docs" / "writing-a-backend.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "writing-a-backend.md", "exec"), names)
    found = names["ReferenceBackend"]
    assert issubclass(found, Backend)
    # So that pickle finds the class where it says it is.
    globals()["ReferenceBackend"] = found
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_spec("onnx") is None, reason="needs onnx")
def test_the_documented_backend_gives_the_golden_outputs(example: type[Backend]) -> None:
    bundle = Bundle.load("panda-hover-classifier")
    golden = bundle.golden
    made = example(bundle.network("fp32"))
    restored = pickle.loads(pickle.dumps(made))
    with made, restored:
        first = made.infer(golden.images[:2])
        np.testing.assert_allclose(first, golden.logits[:2], atol=1e-2, rtol=1e-2)
        np.testing.assert_array_equal(restored.infer(golden.images[:2]), first)


def test_the_documented_backend_is_not_loaded_when_made(example: type[Backend]) -> None:
    from vinoreward.backends.base import TensorSpec
    from vinoreward.backends.spec import NetworkSpec
    from vinoreward.errors import ModelNotFoundError

    spec = NetworkSpec(
        Path("nowhere.onnx"), TensorSpec((None, 4, 4, 3), "uint8"), TensorSpec((None, 2), "float32")
    )
    made = example(spec)
    with pytest.raises(ModelNotFoundError, match=r"nowhere\.onnx"):
        made.infer(np.zeros((1, 4, 4, 3), np.uint8))
    made.close()


def test_the_documented_plugs_of_compressed_actors_work_together(project_root: Path) -> None:
    from vinoreward.compression import CompressionContext
    from vinoreward.correction import Correction, VTrace
    from vinoreward.monitoring import MonitorBatch
    from vinoreward.policies.policy import random_policy
    from vinoreward.policies.reference import forward
    from vinoreward.policies.spec import mlp

    text = (project_root / "docs" / "compressed-actors.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    exec(compile(code, "compressed-actors.md", "exec"), names)
    policy = random_policy(mlp(4, 2, head="logits", hidden=(32, 32)), 0)
    seen = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
    made = names["chain"].compress(policy, CompressionContext(policy, seen))
    assert made.in_int8("dense1") and not made.in_int8("dense0")
    count = np.ones(len(seen), dtype=np.int64)
    setting = names["monitor"].observe(
        MonitorBatch(
            spec=policy.spec,
            pi=forward(policy, seen),
            mu=forward(made, seen) + 2.0,
            versions=count,
            learner_version=1,
            network=count,
        )
    )
    assert setting.bits == 16
    assert Correction([VTrace(), names["Gentle"]()], critic="v") is not None
