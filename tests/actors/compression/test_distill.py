"""Distillation: the loss is the paper's, and students come to act like their teachers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from policy_specs import forward_with_value
from torch import distributions as td

from vinoreward.errors import ConfigError, OutputError
from vinoreward_actors.compression import (
    CompressionContext,
    CompressorChain,
    Distill,
    Prune,
    Quality,
    check_policy,
)
from vinoreward_actors.compression.distill_torch import Batch, Student, head_loss, loss
from vinoreward_actors.policies.policy import Policy, random_policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.torch_policy import from_policy

LESSON = Distill(1, batch=8, beta=0.01, temperature=0.1, sigma=0.2)
IMAGES = PolicySpec(
    observation_shape=(1, 10, 10),
    layers=(
        Conv("conv0", 1, 8, 4, 2),
        Flatten(),
        Dense("dense0", 128, 16, "relu"),
        Dense("head", 16, 3),
    ),
    head="logits",
    actions=3,
    value=Dense("value", 16, 1),
    observation_dtype="uint8",
    scale=1 / 255,
)


def spec_for(head: Any, value: bool = False) -> PolicySpec:
    return mlp(4, 2, head=head, hidden=(32, 32), value=value)


def teacher_for(spec: PolicySpec, seed: int = 0) -> Policy:
    policy = random_policy(spec, seed)
    weights = policy.float_parameters()
    if spec.head == "tanh_gaussian":
        # As trained ones are: fairly sure of what they do.
        weights["head.weight"][spec.actions :] *= 0.2
        weights["head.bias"][spec.actions :] -= 1.0
    return Policy(spec, weights)


def context_for(policy: Policy, push: int = 0, count: int = 500) -> CompressionContext:
    random = np.random.default_rng(1)
    shape = (count, *policy.spec.observation_shape)
    if policy.spec.observation_dtype == "uint8":
        return CompressionContext(policy, random.integers(0, 256, shape, dtype=np.uint8), push)
    return CompressionContext(policy, random.standard_normal(shape).astype(np.float32), push)


def held_out(policy: Policy, teacher: Policy) -> Quality:
    random = np.random.default_rng(2)
    shape = (300, *policy.spec.observation_shape)
    if policy.spec.observation_dtype == "uint8":
        return check_policy(policy, teacher, random.integers(0, 256, shape, dtype=np.uint8))
    return check_policy(policy, teacher, random.standard_normal(shape).astype(np.float32))


# The loss


def tensors(columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(seed)
    one, two = random.normal(0, 0.7, (2, 9, columns))
    return torch.from_numpy(one), torch.from_numpy(two)


def test_the_loss_of_logits_is_equation_one() -> None:
    teacher, student = tensors(4)
    p, q = td.Categorical(logits=teacher), td.Categorical(logits=student)
    expected = (td.kl_divergence(p, q) - 0.01 * q.entropy()).mean()
    found = head_loss(mlp(3, 4, head="logits"), teacher, student, LESSON, 1.0)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_gaussians_is_equation_one() -> None:
    teacher, student = tensors(6)
    p, q = (
        td.Independent(td.Normal(found[:, :3], found[:, 3:].exp()), 1)
        for found in (teacher, student)
    )
    expected = (td.kl_divergence(p, q) - 0.01 * q.entropy()).mean()
    found = head_loss(mlp(3, 3, head="tanh_gaussian"), teacher, student, LESSON, 1.0)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_certain_actions_is_that_of_gaussians_around_them() -> None:
    teacher, student = tensors(3)
    p, q = (td.Independent(td.Normal(found, 0.2), 1) for found in (teacher, student))
    expected = td.kl_divergence(p, q).mean()
    found = head_loss(mlp(3, 3, head="tanh"), teacher, student, LESSON, 1.0)
    torch.testing.assert_close(found, expected)


def test_the_loss_of_values_compares_sharpened_softmaxes() -> None:
    teacher, student = tensors(4)
    p, q = (td.Categorical(logits=found / (0.1 * 2.5)) for found in (teacher, student))
    expected = td.kl_divergence(p, q).mean()
    spec = mlp(3, 4, head="q")
    torch.testing.assert_close(head_loss(spec, teacher, student, LESSON, 2.5), expected)
    # Only how actions compare counts.
    torch.testing.assert_close(head_loss(spec, teacher, student + 7, LESSON, 2.5), expected)


def test_the_values_squared_difference_counts_half() -> None:
    spec = spec_for("logits", value=True)
    teacher, student = from_policy(teacher_for(spec)), from_policy(teacher_for(spec, 1))
    observations = torch.from_numpy(context_for(teacher_for(spec)).observations)
    with torch.no_grad():
        outputs, values = teacher(observations)
        found, read = student(observations)
        batch = Batch(observations, outputs, values, 1.0)
        expected = (
            head_loss(spec, outputs, found, LESSON, 1.0) + 0.5 * (values - read).pow(2).mean()
        )
        torch.testing.assert_close(loss(student, spec, batch, LESSON), expected)


def test_a_width_outside_of_its_limits_finds_its_way_back() -> None:
    student = torch.tensor([[0.0, 5.0], [0.0, -30.0]], requires_grad=True)
    teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    head_loss(mlp(3, 1, head="tanh_gaussian"), teacher, student, LESSON, 1.0).backward()
    assert student.grad is not None
    assert student.grad[0, 1] > 0
    assert student.grad[1, 1] < 0


# Teaching


@pytest.mark.parametrize("head", ["logits", "q", "tanh", "tanh_gaussian"])
def test_a_pruned_network_is_brought_back(head: str) -> None:
    teacher = teacher_for(spec_for(head))
    context = context_for(teacher)
    pruned = Prune(0.5).compress(teacher, context)
    taught = Distill(300, learning_rate=3e-3).compress(pruned, context)
    assert taught.spec == pruned.spec
    before, after = held_out(pruned, teacher), held_out(taught, teacher)
    assert after.kl_mean < 0.2 * before.kl_mean
    assert after.kl_max < before.kl_max
    assert after.agreement >= before.agreement


def test_a_network_of_images_is_taught_too() -> None:
    teacher = random_policy(IMAGES, 0)
    context = context_for(teacher)
    pruned = Prune(0.25).compress(teacher, context)
    taught = Distill(100, batch=64).compress(pruned, context)
    assert held_out(taught, teacher).kl_mean < 0.3 * held_out(pruned, teacher).kl_mean


def test_values_are_taught_along() -> None:
    teacher = teacher_for(spec_for("logits", value=True))
    context = context_for(teacher)
    pruned = Prune(0.5).compress(teacher, context)
    taught = Distill(300, learning_rate=3e-3).compress(pruned, context)
    _, wanted = forward_with_value(teacher, context.observations)
    errors = []
    for policy in (pruned, taught):
        _, found = forward_with_value(policy, context.observations)
        assert wanted is not None and found is not None
        errors.append(float(((wanted - found) ** 2).mean()))
    assert errors[1] < 0.2 * errors[0]


@pytest.mark.parametrize(("of_teacher", "of_student"), [(True, False), (False, True)])
def test_a_value_head_on_one_side_is_let_be(of_teacher: bool, of_student: bool) -> None:
    teacher = teacher_for(spec_for("logits", of_teacher))
    student = mlp(4, 2, head="logits", hidden=(8,), value=of_student)
    stage = Distill(5, student=student, cold_steps=300)
    found = stage.compress(teacher, context_for(teacher))
    assert found.spec == student
    assert held_out(found, teacher).kl_mean < held_out(random_policy(student, 0), teacher).kl_mean
    stage.compress(teacher, context_for(teacher, 1))


def test_a_student_of_its_own_starts_cold_once_and_then_goes_on() -> None:
    teacher = teacher_for(spec_for("logits"))
    stage = Distill(20, student=mlp(4, 2, head="logits", hidden=(12,)), cold_steps=200)
    first = stage.compress(teacher, context_for(teacher))
    assert stage.state()["updates"] == 200
    qualities = [held_out(first, teacher).kl_mean]
    for push in range(1, 6):
        found = stage.compress(teacher, context_for(teacher, push))
        qualities.append(held_out(found, teacher).kl_mean)
    assert stage.state()["updates"] == 300
    assert qualities[-1] < 0.8 * qualities[0]
    assert found.spec.multiply_adds() < teacher.spec.multiply_adds()


def test_the_last_student_is_gone_on_with_after_the_teacher_moved_a_little() -> None:
    chain = CompressorChain().add(Prune(0.5)).add(Distill(100, learning_rate=3e-3))
    teacher = teacher_for(spec_for("logits"))
    for push in range(3):
        chain.compress(teacher, context_for(teacher, push))
    weights = teacher.float_parameters()
    moved = Policy(
        teacher.spec,
        {name: value + np.float32(1e-3) * np.sign(value) for name, value in weights.items()},
    )
    warm = held_out(chain.compress(moved, context_for(moved, 3)), moved)
    fresh = CompressorChain().add(Prune(0.5)).add(Distill(100, learning_rate=3e-3))
    cold = held_out(fresh.compress(moved, context_for(moved, 3)), moved)
    assert warm.kl_mean < 0.7 * cold.kl_mean


def test_a_student_goes_on_with_its_optimiser_over_pushes_and_saves() -> None:
    """The same pushes teach the same, whether the stage was saved in between or not."""
    teacher = teacher_for(spec_for("logits"))
    student = mlp(4, 2, head="logits", hidden=(12,))

    def push(stage: Distill, number: int) -> np.ndarray:
        found = stage.compress(teacher, context_for(teacher, number))
        return found.float_parameters()["dense0.weight"]

    whole = Distill(8, student=student, cold_steps=8)
    for number in range(2):
        push(whole, number)
    saved = whole.state()
    assert saved["updates"] == 16 and np.abs(saved["second.dense0.weight"]).max() > 0  # type: ignore[arg-type]
    again, forgetful = Distill(8, student=student), Distill(8, student=student)
    again.load_state(saved)
    forgetful.load_state(
        {name: value * (0 if "." in name and "student" not in name else 1)  # type: ignore[operator]
         for name, value in saved.items()}
    )  # fmt: skip
    expected = push(whole, 2)
    np.testing.assert_array_equal(push(again, 2), expected)
    np.testing.assert_array_equal(push(again, 3), push(whole, 3))
    assert np.abs(push(forgetful, 2) - expected).max() > 1e-4
    assert again.state()["updates"] == 32


def test_the_optimiser_is_pytorchs() -> None:
    student = Student(random_policy(spec_for("logits"), 0))
    assert isinstance(student.adam, torch.optim.Adam)


def test_a_push_without_time_teaches_a_little_and_one_with_time_more() -> None:
    teacher = teacher_for(spec_for("logits"))
    stage = Distill(student=mlp(4, 2, head="logits", hidden=(12,)), cold_steps=5)
    counts = []
    for push, seconds in enumerate((0.0, 0.0, 30.0)):
        context = replace(context_for(teacher, push), seconds=seconds)
        stage.compress(teacher, context)
        counts.append(stage.state()["updates"])
    # A new student is taught before it acts; then one update at least, and 400 at most.
    assert counts == [5, 6, 406]


def test_a_new_student_begins_with_its_teachers_average_answer() -> None:
    teacher = teacher_for(spec_for("logits"))
    weights = teacher.float_parameters()
    weights["head.bias"] = np.array([3.0, -3.0], dtype=np.float32)
    sure = Policy(teacher.spec, weights)
    student = mlp(4, 2, head="logits", hidden=(12,))
    found = Distill(1, student=student, cold_steps=1).compress(sure, context_for(sure))
    assert held_out(found, sure).kl_mean < 0.5 * held_out(random_policy(student, 0), sure).kl_mean


def test_a_last_student_further_off_than_the_policy_given_is_dropped() -> None:
    stage = Distill(1, learning_rate=1e-6, cold_steps=1)
    for push, seed in enumerate((5, 6)):
        teacher = teacher_for(spec_for("logits"), seed)
        found = stage.compress(teacher.replace(), context_for(teacher, push))
        assert held_out(found, teacher).kl_mean < 1e-4
        assert stage.state()["updates"] == 1


def test_a_teacher_that_nothing_was_taken_from_is_not_taught() -> None:
    teacher = teacher_for(spec_for("logits"))
    chain = CompressorChain().add(Prune(0.0)).add(Distill())
    found = chain.compress(teacher, context_for(teacher))
    assert dict(found.parameters) == dict(teacher.parameters)
    assert chain.state()["1-Distill.updates"] == 0


def test_the_same_push_teaches_the_same() -> None:
    teacher = teacher_for(spec_for("logits"))
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = [
        Distill(5).compress(Prune(0.5).compress(teacher, context), context).float_parameters()
        for context in (context_for(teacher), context_for(teacher), context_for(teacher, 1))
    ]
    np.testing.assert_array_equal(found[0]["head.weight"], found[1]["head.weight"])
    assert not np.array_equal(found[0]["head.weight"], found[2]["head.weight"])
    assert torch.equal(torch.get_rng_state(), before)


def test_few_observations_are_enough_to_run() -> None:
    teacher = teacher_for(spec_for("q"))
    found = Distill(3).compress(teacher.replace(), context_for(teacher, count=1))
    assert np.isfinite(found.float_parameters()["head.weight"]).all()


def test_a_teacher_that_finds_all_actions_alike_is_no_trouble() -> None:
    teacher = teacher_for(spec_for("q"))
    weights = teacher.float_parameters()
    weights["head.weight"] = np.zeros_like(weights["head.weight"])
    weights["head.bias"] = np.zeros_like(weights["head.bias"])
    even = Policy(teacher.spec, weights)
    found = Distill(3).compress(even.replace(), context_for(even))
    assert np.isfinite(found.float_parameters()["head.weight"]).all()


def test_students_for_another_task_are_refused() -> None:
    teacher = teacher_for(spec_for("logits"))
    for student in (mlp(5, 2, head="logits"), mlp(4, 3, head="logits"), mlp(4, 2, head="q")):
        with pytest.raises(ConfigError, match="student differs from the teacher"):
            Distill(student=student).compress(teacher, context_for(teacher))


def test_a_student_that_diverges_is_said_and_forgotten() -> None:
    teacher = teacher_for(spec_for("tanh_gaussian"))
    stage = Distill(3, learning_rate=1e30)
    with pytest.raises(OutputError, match="lower Distill's learning_rate"):
        stage.compress(teacher.replace(), context_for(teacher))
    assert stage.state() == {"updates": 0}


@pytest.mark.parametrize(
    "arguments",
    [
        {"steps": 0},
        {"batch": 0},
        {"cold_steps": 0},
        {"beta": -1.0},
        {"value_weight": float("inf")},
        {"learning_rate": float("nan")},
        {"temperature": 0.0},
        {"sigma": 0.0},
    ],
)
def test_impossible_lessons_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Expected positive"):
        Distill(**arguments)


def test_state_of_other_shapes_is_refused() -> None:
    teacher = teacher_for(spec_for("logits"))
    stage = Distill(1, cold_steps=1)
    stage.compress(teacher.replace(), context_for(teacher))
    state = stage.state()
    state["first.head.bias"] = np.zeros(7)
    with pytest.raises(ConfigError, match="same shapes"):
        Distill().load_state(state)
    with pytest.raises(ConfigError, match="Expected updates"):
        Distill().load_state({name: state[name] for name in state if name != "updates"})
