"""Damage files at random, by seed, and print what reading them gives. Runs as its own process.

Each mutation is numbered, and what it does depends on its number alone. A line is printed before it
is tried, so that the parent knows which one ended the process and continues after it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import io
import json
import random
import resource
import shutil
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MAX_MEMORY = 4 << 30
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 63, -(1 << 63), 10**400, 0.5, -0.0, 1e308, 5e-324,
    "", "x", "\0", "ä\u202e", "../../x", "/etc/passwd", "CPU", "x" * 5000, [], {}, [[]], [None],
    {"": 0}, [1, 2], ["a"] * 300, {"a": {"b": {"c": []}}}, float("nan"), float("inf"),
]  # fmt: skip


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """Flip, cut, insert, repeat or swap a few pieces."""
    found = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        place = rng.randrange(len(found) + 1)
        size = rng.choice([1, 1, 2, 4, 8, 64])
        match rng.randrange(6):
            case 0 if found:
                found[place % len(found)] ^= 1 << rng.randrange(8)
            case 1:
                found[place : place + size] = rng.randbytes(size)
            case 2:
                del found[place : place + size]
            case 3:
                found[place:place] = rng.choice([rng.randbytes(size), b"\xff" * size, b"\0" * size])
            case 4:
                found[place:place] = found[place : place + 16 * size]
            case _:
                del found[place:]
    return bytes(found)


def mutate_json(value: Any, rng: random.Random) -> Any:
    """Change, remove, add or nest something at a random place."""
    found = copy.deepcopy(value)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(found)
    for _ in range(rng.choice([1, 1, 2])):
        node, key = rng.choice(places)
        with contextlib.suppress(KeyError, IndexError):  # removed by the turn before
            match rng.randrange(7):
                case 0:
                    del node[key]
                case 1:
                    node[key] = [node[key]]
                case 2:
                    node[key] = {"a": node[key]}
                case 3:
                    deep: Any = node[key]
                    for _ in range(rng.choice([9, 60, 400])):
                        deep = [deep]
                    node[key] = deep
                case 4 if isinstance(node, dict):
                    node[str(rng.choice(VALUES))[:50]] = node[key]
                case _:
                    node[key] = copy.deepcopy(rng.choice(VALUES))
    return found


def mutate_text(data: bytes, rng: random.Random) -> bytes:
    """Damage JSON as a value mostly, and as bytes now and then."""
    if rng.random() < 0.25:
        return mutate_bytes(data, rng)
    if rng.random() < 0.03:
        return b'{"a":' * 100_000
    return json.dumps(mutate_json(json.loads(data), rng)).encode()


def mutate_archive(data: bytes, rng: random.Random) -> bytes:
    """Damage a zip file's bytes, or write another one with unusual methods, flags, arrays."""
    if rng.random() < 0.5:
        return mutate_bytes(data, rng)
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as source, zipfile.ZipFile(out, "w") as target:
        for member in source.infolist():
            content = source.read(member)
            if rng.random() < 0.6:
                content = mutate_bytes(content[:128], rng) + content[128:]
            if rng.random() < 0.1:
                content = np.lib.format.magic(1, 0) + b"\xff\xff" + b"(" * 65535
            if rng.random() < 0.1:
                dtype = rng.choice(["O", "S1000", "f8", "i4,f4", "<M8[s]", "U3"])
                stream = io.BytesIO()
                np.save(stream, np.zeros(3, dtype), allow_pickle=True)
                content = stream.getvalue()
            method = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2,
                                 zipfile.ZIP_LZMA])  # fmt: skip
            name = rng.choice([member.filename] * 8 + ["../x.npy", "ä.npy", "x/"])
            target.writestr(name, content, method)
    made = bytearray(out.getvalue())
    if rng.random() < 0.3:  # encrypted, or of a method that nobody knows
        for sign, place in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
            at = made.find(sign)
            made[at + place] |= rng.choice([1, 0])
            made[at + place + 2] = rng.choice([made[at + place + 2], 99, 1, 9])
    return bytes(made)


def mutate_graph(data: bytes, rng: random.Random) -> bytes:
    """Damage the bytes of an ONNX file, or write one that is well formed and wrong."""
    if rng.random() < 0.3:
        return mutate_bytes(data, rng)
    import onnx

    from vinoreward.backends.onnx_file import OPERATORS

    model = onnx.load_model_from_string(data)
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    numbers = [0, 1, -1, 2, 3, 7, 64, 1 << 20, 1 << 31, (1 << 63) - 1, -(1 << 62)]
    for _ in range(rng.choice([1, 1, 2, 3])):
        node = rng.choice(model.graph.node)
        match rng.randrange(9):
            case 0:
                node.op_type = rng.choice([*sorted(OPERATORS), "Loop", "NonZero", "\0"])
            case 1 if node.input:
                node.input[rng.randrange(len(node.input))] = rng.choice([*names, "", "none"])
            case 2:
                node.output[0] = rng.choice([*names, ""])
            case 3:
                name = rng.choice(["axis", "axes", "perm", "pads", "to", "kernel_shape", "shape"])
                value = [rng.choice(numbers) for _ in range(rng.randrange(1, 5))]
                made = onnx.helper.make_attribute(name, rng.choice([value, value[0], 0.5, "x"]))
                node.attribute.append(made)
            case 4:
                tensor = rng.choice(model.graph.initializer)
                tensor.dims[:] = [rng.choice(numbers) for _ in range(rng.randrange(4))]
            case 5:
                tensor = rng.choice(model.graph.initializer)
                tensor.data_type = rng.randrange(25)
            case 6:
                tensor = rng.choice(model.graph.initializer)
                tensor.raw_data = mutate_bytes(tensor.raw_data, rng)
            case 7:
                sizes = rng.choice([*model.graph.input, *model.graph.output]).type.tensor_type
                sizes.shape.dim[rng.randrange(len(sizes.shape.dim))].dim_value = rng.choice(numbers)
            case _:
                model.opset_import[0].version = rng.choice([0, 1, 9, 12, 18, 22, 30])
    content: bytes = model.SerializeToString()
    return content


Case = Callable[[random.Random], str]


def cases(folder: Path) -> dict[str, Case]:
    """Return, by file name, a function that damages the file once and uses it.

    Each imports what it alone needs: only one of them runs in a process.
    """
    from backend_policies import SPECS, in_int8
    from tiny_network import golden_images, save_tiny

    from vinoreward.bundles.bundle import Bundle
    from vinoreward_actors.policies import load_policy, save_policy
    from vinoreward_actors.policies.policy import random_policy

    images, whole = golden_images(), save_tiny(folder)
    policy_path = save_policy(folder / "policies", in_int8(random_policy(SPECS["small"], 0)))
    policy = load_policy(policy_path)
    kept = {
        path: path.read_bytes()
        for place in (whole.path, folder / "policies")
        for path in place.rglob("*")
        if path.is_file()
    }
    logits = whole.golden.logits

    @functools.cache
    def answer(name: str) -> Any:
        """Return what a backend says with the whole bundle, which has to be there."""
        return whole.backend(name).infer(images)

    def restore() -> None:
        for path, content in kept.items():
            path.write_bytes(content)

    def bundle_file(name: str, content: bytes) -> None:
        """Replace a file with its hashes, as an attacker would."""
        (whole.path / name).write_bytes(content)
        if name != "bundle.json":
            spec = json.loads((whole.path / "bundle.json").read_bytes())
            spec["files"][name] = hashlib.sha256(content).hexdigest()
            (whole.path / "bundle.json").write_text(json.dumps(spec))
        digest = hashlib.sha256((whole.path / "bundle.json").read_bytes()).hexdigest()
        (whole.path / "bundle.sha256").write_text(digest)

    def description(rng: random.Random) -> str:
        restore()
        bundle_file("bundle.json", mutate_text(kept[whole.path / "bundle.json"], rng))
        loaded = Bundle.load(whole.path)
        loaded.spec.to_dict()
        loaded.prepare(images)
        if rng.random() < 0.15:
            with loaded.backend(rng.choice(["openvino", "onnxruntime"])) as backend:
                backend.infer(loaded.golden.images)
        return "loaded"

    def golden(rng: random.Random) -> str:
        restore()
        bundle_file("golden.npz", mutate_archive(kept[whole.path / "golden.npz"], rng))
        found = Bundle.load(whole.path).golden
        same = np.array_equal(found.images, images) and np.array_equal(found.logits, logits)
        return "same" if same else "other frames that fit"

    def graph(rng: random.Random) -> str:
        restore()
        content = mutate_graph(kept[whole.path / "model.onnx"], rng)
        name = rng.choice(["onnxruntime", "openvino"])
        expected = answer(name)
        bundle_file("model.onnx", content)
        with Bundle.load(whole.path).backend(name) as backend:  # its golden frames are run
            np.testing.assert_allclose(backend.infer(images), expected, atol=0.1)
        return "same"

    def foreign(rng: random.Random) -> str:
        path = folder / "foreign.onnx"
        path.write_bytes(mutate_graph(kept[whole.path / "model.onnx"], rng))
        own = Bundle.from_model(path, labels=["a", "b"], success_label="b")
        with own.backend("openvino", verify=False) as backend:
            backend.infer(images)
        return "described"

    def policy_json(rng: random.Random) -> str:
        restore()
        policy_path.write_bytes(mutate_text(kept[policy_path], rng))
        load_policy(policy_path)
        return "loaded"

    def policy_weights(rng: random.Random) -> str:
        restore()
        weights = policy_path.with_suffix(".safetensors")
        content = mutate_bytes(kept[weights], rng)
        weights.write_bytes(content)
        told = json.loads(kept[policy_path])
        told["sha256"] = hashlib.sha256(content).hexdigest()
        policy_path.write_text(json.dumps(told))
        found = load_policy(policy_path)
        return "same" if found.spec == policy.spec else "other"

    return {
        "bundle.json": description,
        "golden.npz": golden,
        "model.onnx": graph,
        "foreign.onnx": foreign,
        "policy.json": policy_json,
        "policy.safetensors": policy_weights,
    }


def main(name: str, first: int, last: int) -> None:
    """Print for each number what came of it: ``loaded``, an error of ours, or a traceback."""
    from vinoreward.errors import VinorewardError

    folder = Path(tempfile.mkdtemp())
    try:
        case = cases(folder)[name]
        resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
        for number in range(first, last):
            print(json.dumps({"number": number}), flush=True)
            try:
                outcome = case(random.Random(f"{name} {number}"))
            except VinorewardError as error:
                text = str(error)
                outcome = type(error).__name__
                if len(text) > 2000 or ("\n" in text.strip() and "reason it gives" not in text):
                    outcome = f"not a sentence: {text[:300]!r}"
            except BaseException:  # noqa: BLE001 - whatever it is, it is not ours
                outcome = "Traceback: " + traceback.format_exc()[-1500:]
            print(json.dumps({"number": number, "outcome": outcome}), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
