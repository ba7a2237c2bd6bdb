"""A camera that shows an earlier step earns nothing, see the golden traces for the other forms."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from toy_environments import HEIGHT, WIDTH, Corridor

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, OutOfDistributionError
from vinoreward.rewards.frozen import FrozenCheck

LEARNING = 400
"""Steps after which the check knows what is usual."""


class Slider(gym.Env[Any, Any]):
    """A red level and a blue stripe that jump; success is much red. The last number is a clock."""

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0, 100, (3,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.state = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        self.state = self.np_random.random(2)
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if action:
            self.state = self.np_random.random(2)
        return self._observe(), 0.0, False, self.steps >= 10, {"true_success": False}

    def _observe(self) -> Any:
        return np.array([*self.state, self.steps], np.float32)


class Camera:
    """Draws what it is shown; can stand still, or show what it showed before."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.stuck: Any = None
        self.steps = 0

    def __call__(self, env: Any, observation: Any) -> Any:
        self.steps = round(float(observation[2]))
        if self.stuck is not None:
            return self.stuck
        image = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
        image[..., 0] = round(255 * float(observation[0]))
        image[:, int(WIDTH * float(observation[1])) % WIDTH, 2] = 200
        self.shown.append(image)
        return image


class Driver:
    """Steps one environment; returns its info of each transition."""

    def __init__(self, bundle: Bundle, **options: Any) -> None:
        self.camera = Camera()
        options = {"image_source": self.camera, "terminate_on_success": False, **options}
        self.env = LearnedReward(Slider(), bundle, **options)
        self.env.reset(seed=0)

    def step(self, action: int = 1) -> dict[str, Any]:
        *_, truncated, info = self.env.step(action)
        if truncated:
            self.env.reset()
        return info


def test_a_frozen_camera_earns_nothing(bundle: Bundle) -> None:
    driver = Driver(bundle)
    alarms = claims = 0
    for _ in range(LEARNING):
        info = driver.step()
        alarms += info["reward_ood"] > 1
        claims += info["is_success"]
    assert claims > 50 and alarms <= 4
    while not driver.step()["is_success"]:
        pass
    driver.camera.stuck = driver.camera.shown[-1]
    infos = [driver.step() for _ in range(30)]
    rewarded = [info for info in infos if info["is_success"]]
    assert len(rewarded) <= 2, "but where the state is, by chance, as it was"
    assert all(info["reward_ood"] > 1 for info in infos if info not in rewarded)
    assert all(info["reward_prob"] > 0.5 for info in infos)
    driver.env.close()


def test_the_image_of_an_earlier_success_earns_nothing(bundle: Bundle) -> None:
    """Of the same episode, with another image between."""
    driver = Driver(bundle)
    for _ in range(LEARNING):
        driver.step()
    rewarded = trials = 0
    while trials < 20:
        if not driver.step()["is_success"] or driver.camera.steps > 8:
            continue
        old = driver.camera.shown[-1]
        if not driver.step()["is_success"]:
            driver.camera.stuck = old
            rewarded += driver.step()["is_success"]
            driver.camera.stuck = None
            trials += 1
    assert rewarded <= 1
    driver.env.close()


def test_what_stands_still_is_no_alarm(bundle: Bundle) -> None:
    """Though the observation's clock goes on."""
    driver = Driver(bundle)
    for _ in range(LEARNING):
        driver.step()
    while not driver.step()["is_success"] or driver.env.unwrapped.steps > 3:
        pass
    infos = [driver.step(0) for _ in range(6)]
    assert all(info["is_success"] and info["reward_ood"] <= 1 for info in infos)
    driver.env.close()


def test_how_the_check_answers_and_is_switched_off(bundle: Bundle) -> None:
    for options in ({"frozen_check": False}, {"on_ood": "ignore"}):
        driver = Driver(bundle, **options)
        assert "reward_ood" not in driver.step()
    raising = Driver(bundle, on_ood="raise")
    with pytest.raises(OutOfDistributionError, match="shows less change than the observation"):
        for step in range(LEARNING + 10):
            raising.step()
            if step == LEARNING:
                raising.camera.stuck = raising.camera.shown[-1]
    for kind, source, watched in (("image", "obs", False), ("dict", "obs:image", True)):
        observed = LearnedReward(Corridor(kind), bundle, image_source=source)
        observed.reset(seed=0)
        assert ("reward_ood" in observed.step(1)[4]) is watched, "with numbers beside the image"
    with pytest.raises(ConfigError, match="frozen_check is 'yes'"):
        LearnedReward(Corridor(), bundle, image_source=Camera(), frozen_check="yes")  # type: ignore[arg-type]


class Scene:
    """A textured square that moves over a textured table."""

    def __init__(self, step: float) -> None:
        self.random, self.step = np.random.default_rng(0), step
        self.table = self.random.integers(120, 180, (48, 64, 3)).astype(np.uint8)
        self.square = self.random.integers(0, 90, (14, 14, 3)).astype(np.uint8)
        self.place = np.array([10.0, 10.0])

    def move(self) -> Any:
        moved = self.place + self.random.uniform(-self.step, self.step, 2)
        self.place = np.clip(moved, 0, (33, 49))
        return self.place.copy()

    def draw(self, place: Any) -> Any:
        image = self.table.copy()
        top, left = (round(float(each)) for each in place)
        image[top : top + 14, left : left + 14] = self.square
        return image


ONE = np.ones(1, np.bool_)


def learned(scene: Scene) -> FrozenCheck:
    check = FrozenCheck(1)
    for _ in range(600):
        place = scene.move()
        check.ood_score(ONE, scene.draw(place)[None], place[None], ONE)
    return check


@pytest.mark.parametrize("kind", ["clean", "top", "ghost", "blocks"])
def test_parts_that_froze_and_ghosts_are_stale(kind: str) -> None:
    scene = Scene(12)
    check = learned(scene)
    alarms, seen = 0, 0
    for _ in range(200):
        before, place = scene.place.copy(), scene.move()
        old, new = scene.draw(before), scene.draw(place)
        image = new
        if kind == "top":
            image = np.concatenate([old[:31], new[31:]])
        elif kind == "ghost":
            image = np.rint(0.7 * old + 0.3 * new).astype(np.uint8)
        elif kind == "blocks":
            stale = scene.random.random((6, 8, 1)) < 0.6
            image = np.where(stale.repeat(8, 0).repeat(8, 1), old, new)
        if kind != "top" or before[0] < 14:  # else the square is not in the part that froze
            seen += 1
            alarms += int(check.ood_score(ONE, image[None], place[None], ONE)[0] > 1)
        check.ood_score(ONE, new[None], place[None], ~ONE)
    assert alarms <= 2 if kind == "clean" else alarms >= 0.8 * seen


def test_less_than_a_pixel_is_no_alarm() -> None:
    scene = Scene(0.3)
    check = FrozenCheck(1)
    alarms = 0
    for _ in range(600):
        place = scene.move()
        alarms += int(check.ood_score(ONE, scene.draw(place)[None], place[None], ONE)[0] > 1)
    assert alarms == 0


def test_velocities_that_no_image_shows_are_no_alarm() -> None:
    """Though images come again, bit for bit, in other episodes."""
    scene = Scene(0)
    check, random = FrozenCheck(1), scene.random
    alarms = 0
    for _ in range(300):
        check.begin(ONE)
        place, speed = random.uniform(0, 33, 2), random.normal(0, 3, 2)
        for _ in range(10):
            speed = np.where((place + speed < 0) | (place + speed > 33), -speed, speed)
            speed, place = speed + random.normal(0, 1, 2), np.clip(place + speed, 0, 33)
            state, image = np.concatenate([place, speed]), scene.draw(4 * np.rint(place / 4))
            claims = np.array([place[0] < 16])
            alarms += int(check.ood_score(ONE, image[None], state[None], claims)[0] > 1)
    assert alarms <= 3


def test_environments_of_a_batch_are_checked_apart() -> None:
    """And all of them show what is usual."""
    scene = Scene(12)
    check, both = FrozenCheck(2), np.ones(2, np.bool_)
    for _ in range(300):
        places = np.stack([scene.move(), scene.move()])
        images = np.stack([scene.draw(place) for place in places])
        check.ood_score(both, images, places, both)
    following = np.stack([scene.move(), scene.move()])
    one = np.stack([images[0], scene.draw(following[1])])
    assert (check.ood_score(both, one, following, both) > 1).tolist() == [True, False]
