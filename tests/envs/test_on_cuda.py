"""A batch of hover environments on a CUDA device, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hover_batches import gaps

from vinoreward import VectorEncodedObservation  # also registers the environments

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.filterwarnings("ignore:Synchronization debug mode:UserWarning"),
]
ENCODER = "panda-hover-encoder"
STATES, PIXELS = "PandaHoverRandom-v0", "PandaHoverPixels-v0"


def make(count: int, device: str, id_: str = STATES, **kwargs: Any) -> Any:
    return gym.make_vec(
        id_,
        count,
        vectorization_mode="vector_entry_point",
        array="torch",
        device=device,
        **{"backend": "torch", **kwargs},
    )


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """Make everything an error that copies to the host, or waits for the device."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(
    ("id_", "options"),
    [
        (STATES, {}),
        (STATES, {"backend": "oracle"}),
        (PIXELS, {}),
        (PIXELS, {"backend": "none"}),
        (PIXELS, {"encoded": True}),
        (STATES, {"success_hold_steps": 2, "success_exit_threshold": 0.2, "on_ood": "ignore"}),
        (STATES, {"randomization": "lab", "on_ood": "ignore"}),
        (PIXELS, {"backend": "oracle", "randomization": "lab"}),
    ],
)
def test_nothing_leaves_the_device_in_1000_steps(
    no_waiting: None, id_: str, options: dict[str, Any]
) -> None:
    env = make(64, "cuda", id_, **{k: v for k, v in options.items() if k != "encoded"})
    if "encoded" in options:
        env = VectorEncodedObservation(env, ENCODER, backend="torch", device="CUDA", frame_stack=2)
    env.reset(seed=1)
    actions = 0.2 * torch.rand((1000, 64, 2), device="cuda") - 0.1
    actions[100, 7] = float("nan")
    env.step(actions[0])  # loads and records
    claimed = torch.zeros((), dtype=torch.int64, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    with pytest.raises(RuntimeError, match="synchroniz"):
        claimed.item()  # so such copies are found
    for each in actions:
        observations, rewards, terminated, truncated, infos = env.step(each)
        claimed += terminated.sum()
    torch.cuda.set_sync_debug_mode("default")
    for tensor in (observations, rewards, terminated, truncated, infos["final_obs"]):
        assert tensor.is_cuda
    assert (claimed.item() > 100) == (options.get("backend") != "none")
    env.close()


def test_an_encoder_sees_as_on_a_processor() -> None:
    there = VectorEncodedObservation(
        make(100, "cuda", PIXELS), ENCODER, backend="torch", device="CUDA"
    )
    here = VectorEncodedObservation(
        make(100, "cpu", PIXELS, backend="oracle"),
        ENCODER,
        backend="torch",
        image_source=lambda _, image: image.numpy(),
    )
    found, expected = there.reset(seed=3)[0], here.reset(seed=3)[0]
    assert isinstance(expected, np.ndarray)
    np.testing.assert_allclose(found.cpu(), expected, atol=0.2)
    there.close()
    here.close()


@pytest.mark.parametrize(
    ("options", "claims"),
    # The guard finds all images of "lab" out of distribution.
    [({}, 0.1), ({"randomization": "lab", "on_ood": "ignore"}, 0.01)],
)
def test_it_decides_as_on_a_processor(options: dict[str, Any], claims: float) -> None:
    """In half precision: the same decisions for 99.9 %, the same images to a grey level."""
    count, different, claimed = 256, 0, 0
    there = make(count, "cuda", PIXELS, **options)
    here = make(count, "cpu", PIXELS, precision="fp32", **options)
    found, expected = there.reset(seed=3)[0], here.reset(seed=3)[0]
    draw = np.random.default_rng(5)
    for _ in range(20):
        assert (found.cpu().int() - expected.int()).abs().float().mean() < 0.01
        away = gaps(here)
        actions = torch.tensor(away + draw.normal(0, 0.03, (count, 2)), dtype=torch.float32)
        found, _, ended, *_, told = there.step(actions.cuda())
        expected, _, ended_here, *_, told_here = here.step(actions)
        if "reward_ood" in told:
            both = told["_reward_ood"].cpu() & told_here["_reward_ood"]
            ood_score = [infos["reward_ood"].cpu()[both] for infos in (told, told_here)]
            torch.testing.assert_close(*ood_score, rtol=0, atol=0.05)
        different += int((ended.cpu() != ended_here).sum())
        claimed += int(ended_here.sum())
        # Those that decided otherwise are in other episodes from now on.
        if (ended.cpu() != ended_here).any():
            found, expected = there.reset(seed=4)[0], here.reset(seed=4)[0]
    assert claimed > claims * 20 * count
    assert different <= 0.001 * 20 * count
    there.close()
    here.close()
