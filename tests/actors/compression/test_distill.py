"""Distillation: the loss is the paper's, and students come to act like their teachers."""

from dataclasses import replace

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
    check_policy,
)
from vinoreward_actors.compression.distill_torch import head_loss
from vinoreward_actors.policies.policy import Policy, random_policy
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

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


def spec_for(head, value=False):
    return mlp(4, 2, head=head, hidden=(32, 32), value=value)


def teacher_for(spec, seed=0):
    policy = random_policy(spec, seed)
    weights = policy.float_parameters()
    if spec.head == "tanh_gaussian":
        # As trained ones are: fairly sure of what they do.
        weights["head.weight"][spec.actions :] *= 0.2
        weights["head.bias"][spec.actions :] -= 1.0
    return Policy(spec, weights)


TEACHER = teacher_for(spec_for("logits"))
SMALL = mlp(4, 2, head="logits", hidden=(12,))


def rows_for(spec, count, seed):
    random = np.random.default_rng(seed)
    shape = (count, *spec.observation_shape)
    if spec.observation_dtype == "uint8":
        return random.integers(0, 256, shape, dtype=np.uint8)
    return random.standard_normal(shape).astype(np.float32)


def context_for(policy, push=0, count=500):
    return CompressionContext(policy, rows_for(policy.spec, count, 1), push)


def held_out(policy, teacher):
    return check_policy(policy, teacher, rows_for(policy.spec, 300, 2))


# The loss


def independent(outputs, scale):
    return td.Independent(td.Normal(outputs, scale), 1)


@pytest.mark.parametrize(
    ("spec", "columns", "of"),
    [
        (mlp(3, 4, head="logits"), 4, lambda outputs: td.Categorical(logits=outputs)),
        (
            mlp(3, 3, head="tanh_gaussian"),
            6,
            lambda outputs: independent(outputs[:, :3], outputs[:, 3:].exp()),
        ),
        # Certain actions have Gaussians around them, values a sharpened softmax: no entropy.
        (mlp(3, 3, head="tanh"), 3, lambda outputs: independent(outputs, 0.2)),
        (mlp(3, 4, head="q"), 4, lambda outputs: td.Categorical(logits=outputs / (0.1 * 2.5))),
    ],
)
def test_the_loss_is_equation_one(spec, columns, of):
    one, two = np.random.default_rng(0).normal(0, 0.7, (2, 9, columns))
    teacher, student = torch.from_numpy(one), torch.from_numpy(two)
    p, q = of(teacher), of(student)
    expected = td.kl_divergence(p, q)
    if spec.head in ("logits", "tanh_gaussian"):
        expected = expected - 0.01 * q.entropy()
    found = head_loss(spec, teacher, student, LESSON, 2.5)
    torch.testing.assert_close(found, expected.mean())
    if spec.head == "q":  # only how actions compare counts
        torch.testing.assert_close(head_loss(spec, teacher, student + 7, LESSON, 2.5), found)


def test_a_width_outside_of_its_limits_finds_its_way_back():
    student = torch.tensor([[0.0, 5.0], [0.0, -30.0]], requires_grad=True)
    teacher = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
    head_loss(mlp(3, 1, head="tanh_gaussian"), teacher, student, LESSON, 1.0).backward()
    assert student.grad[0, 1] > 0
    assert student.grad[1, 1] < 0


# Teaching


@pytest.mark.parametrize("head", ["logits", "q", "tanh", "tanh_gaussian"])
def test_a_pruned_network_is_brought_back(head):
    teacher = teacher_for(spec_for(head))
    context = context_for(teacher)
    pruned = Prune(0.5).compress(teacher, context)
    taught = Distill(300, learning_rate=3e-3).compress(pruned, context)
    assert taught.spec == pruned.spec
    before, after = held_out(pruned, teacher), held_out(taught, teacher)
    assert after.kl_mean < 0.2 * before.kl_mean
    assert after.kl_max < before.kl_max
    assert after.agreement >= before.agreement


def test_a_network_of_images_and_values_is_taught_too():
    teacher = random_policy(IMAGES, 0)
    context = context_for(teacher)
    pruned = Prune(0.25).compress(teacher, context)
    taught = Distill(100, batch=64).compress(pruned, context)
    assert held_out(taught, teacher).kl_mean < 0.3 * held_out(pruned, teacher).kl_mean
    teacher = teacher_for(spec_for("logits", value=True))
    context = context_for(teacher)
    pruned = Prune(0.5).compress(teacher, context)
    taught = Distill(300, learning_rate=3e-3).compress(pruned, context)
    wanted, *found = (
        forward_with_value(policy, context.observations)[1] for policy in (teacher, pruned, taught)
    )
    before, after = (float(((wanted - read) ** 2).mean()) for read in found)
    assert after < 0.2 * before


@pytest.mark.parametrize(("of_teacher", "of_student"), [(True, False), (False, True)])
def test_a_value_head_on_one_side_is_let_be(of_teacher, of_student):
    teacher = teacher_for(spec_for("logits", of_teacher))
    student = mlp(4, 2, head="logits", hidden=(8,), value=of_student)
    stage = Distill(5, student=student, cold_steps=300)
    found = stage.compress(teacher, context_for(teacher))
    assert found.spec == student
    assert held_out(found, teacher).kl_mean < held_out(random_policy(student, 0), teacher).kl_mean
    stage.compress(teacher, context_for(teacher, 1))


def test_a_student_of_its_own_starts_cold_once_and_then_goes_on():
    stage = Distill(20, student=SMALL, cold_steps=200)
    qualities = []
    for push in range(6):
        found = stage.compress(TEACHER, context_for(TEACHER, push))
        assert stage.state()["updates"] == 200 + 20 * push
        qualities.append(held_out(found, TEACHER).kl_mean)
    assert qualities[-1] < 0.8 * qualities[0]
    assert found.spec.multiply_adds() < TEACHER.spec.multiply_adds()


def test_the_last_student_is_gone_on_with_after_the_teacher_moved_a_little():
    def chain():
        return CompressorChain().add(Prune(0.5)).add(Distill(100, learning_rate=3e-3))

    warm = chain()
    for push in range(3):
        warm.compress(TEACHER, context_for(TEACHER, push))
    weights = {
        name: value + np.float32(1e-3) * np.sign(value)
        for name, value in TEACHER.float_parameters().items()
    }
    moved = Policy(TEACHER.spec, weights)
    after, cold = (
        held_out(one.compress(moved, context_for(moved, 3)), moved) for one in (warm, chain())
    )
    assert after.kl_mean < 0.7 * cold.kl_mean


def test_a_student_goes_on_with_its_optimiser_over_pushes_and_saves():
    """The same pushes teach the same, whether the stage was saved in between or not."""

    def push(stage, number):
        found = stage.compress(TEACHER, context_for(TEACHER, number))
        return found.float_parameters()["dense0.weight"]

    whole = Distill(8, student=SMALL, cold_steps=8)
    for number in range(2):
        push(whole, number)
    saved = whole.state()
    again, forgetful = Distill(8, student=SMALL), Distill(8, student=SMALL)
    again.load_state(saved)
    forgetful.load_state(
        {
            name: value * (0 if "." in name and "student" not in name else 1)
            for name, value in saved.items()
        }
    )
    expected = push(whole, 2)
    np.testing.assert_array_equal(push(again, 2), expected)
    np.testing.assert_array_equal(push(again, 3), push(whole, 3))
    assert np.abs(push(forgetful, 2) - expected).max() > 1e-4


def test_a_push_without_time_teaches_a_little_and_one_with_time_more():
    stage, counts = Distill(student=SMALL, cold_steps=5), []
    for push, seconds in enumerate((0.0, 0.0, 30.0)):
        stage.compress(TEACHER, replace(context_for(TEACHER, push), seconds=seconds))
        counts.append(stage.state()["updates"])
    # A new student is taught before it acts; then one update at least, and 400 at most.
    assert counts == [5, 6, 406]


def test_a_new_student_begins_with_its_teachers_average_answer():
    weights = TEACHER.float_parameters()
    weights["head.bias"] = np.array([3.0, -3.0], dtype=np.float32)
    sure = Policy(TEACHER.spec, weights)
    found = Distill(1, student=SMALL, cold_steps=1).compress(sure, context_for(sure))
    assert held_out(found, sure).kl_mean < 0.5 * held_out(random_policy(SMALL, 0), sure).kl_mean


def test_a_last_student_further_off_than_the_policy_given_is_dropped():
    stage = Distill(1, learning_rate=1e-6, cold_steps=1)
    for push, seed in enumerate((5, 6)):
        teacher = teacher_for(spec_for("logits"), seed)
        found = stage.compress(teacher.replace(), context_for(teacher, push))
        assert held_out(found, teacher).kl_mean < 1e-4
        assert stage.state()["updates"] == 1


def test_the_same_push_teaches_the_same():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = [
        Distill(5).compress(Prune(0.5).compress(TEACHER, context), context).float_parameters()
        for context in (context_for(TEACHER), context_for(TEACHER), context_for(TEACHER, 1))
    ]
    np.testing.assert_array_equal(found[0]["head.weight"], found[1]["head.weight"])
    assert not np.array_equal(found[0]["head.weight"], found[2]["head.weight"])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_teacher_that_finds_all_actions_alike_is_no_trouble():
    """Nor is a single observation."""
    teacher = teacher_for(spec_for("q"))
    weights = {**teacher.float_parameters(), "head.bias": np.zeros(2, np.float32)}
    weights["head.weight"] = np.zeros_like(weights["head.weight"])
    even = Policy(teacher.spec, weights)
    found = Distill(3).compress(even.replace(), context_for(even, count=1))
    assert np.isfinite(found.float_parameters()["head.weight"]).all()


def teach(student):
    return Distill(student=student).compress(TEACHER, context_for(TEACHER))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: teach(mlp(5, 2, head="logits")), "student differs from the teacher"),
        (lambda: teach(mlp(4, 3, head="logits")), "student differs from the teacher"),
        (lambda: teach(mlp(4, 2, head="q")), "student differs from the teacher"),
        (lambda: Distill(steps=0), "Expected positive"),
        (lambda: Distill(batch=0), "Expected positive"),
        (lambda: Distill(cold_steps=0), "Expected positive"),
        (lambda: Distill(beta=-1.0), "Expected positive"),
        (lambda: Distill(value_weight=float("inf")), "Expected positive"),
        (lambda: Distill(learning_rate=float("nan")), "Expected positive"),
        (lambda: Distill(temperature=0.0), "Expected positive"),
        (lambda: Distill(sigma=0.0), "Expected positive"),
    ],
)
def test_impossible_students_and_lessons_are_refused(make, said):
    with pytest.raises(ConfigError, match=said):
        make()


def test_a_student_that_diverges_is_said_and_forgotten():
    teacher = teacher_for(spec_for("tanh_gaussian"))
    stage = Distill(3, learning_rate=1e30)
    with pytest.raises(OutputError, match="lower Distill's learning_rate"):
        stage.compress(teacher.replace(), context_for(teacher))
    assert stage.state() == {"updates": 0}
