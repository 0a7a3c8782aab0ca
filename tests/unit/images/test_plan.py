"""The order and the size of layers, pins that nothing meets, and how long a node takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from myriad.images.definition import ImageDefinition
from myriad.images.plan import (
    MB,
    Change,
    Contents,
    Node,
    PlannedLayer,
    agrees,
    pin_problems,
    plan_layers,
    predict,
    python_path,
    wheel_layers,
)
from myriad.images.wheels import Wheel, WheelFile

PARTS: dict[str, Any] = {
    "wheels": {"group": "extension"},
    "packages": ["git"],
    "source": {"modules": ["myriad.scheduler"]},
    "files": [{"from": "a.py", "to": "/opt/a.py"}],
}


def definition(*parts: str, **more: object) -> ImageDefinition:
    common = {"repo": "x", "title": "x", "entrypoint": ["x"], "budget_mb": 1}
    return ImageDefinition.model_validate({**common, **{part: PARTS[part] for part in parts}, **more})


def wheel(name: str, size: int = MB, version: str = "1.0") -> Wheel:
    return Wheel(name, version, f"{name}-{version}-py3-none-any.whl", "0" * 64, size)


@pytest.mark.parametrize(
    ("parts", "changes"),
    [
        ((), [Change.SYSTEM, Change.TOOLS]),
        (("files",), [Change.SYSTEM, Change.TOOLS, Change.FILES]),
        (
            ("files", "source", "wheels", "packages"),
            [Change.SYSTEM, Change.PACKAGES, Change.WHEELS, Change.SOURCE, Change.FILES],
        ),
        (("source",), [Change.SYSTEM, Change.SOURCE]),
    ],
)
def test_layers_are_ordered_by_change(parts: tuple[str, ...], changes: list[Change]) -> None:
    assert [layer.change for layer in plan_layers(definition(*parts))] == changes


def test_own_code_is_found_before_wheels() -> None:
    assert python_path(plan_layers(definition("wheels", "source"))) == "/opt/myriad/src:/opt/myriad/site"
    assert python_path(plan_layers(definition("files"))) == ""


def test_each_cuda_library_and_each_large_wheel_is_a_layer_and_the_small_ones_share_one() -> None:
    wheels = [
        wheel("torch", 500 * MB),
        wheel("nvidia-cublas", 400 * MB),
        wheel("nvidia-nccl-cu13", 200 * MB),
        wheel("nvidia-nvtx"),
        wheel("nvidia-cufile"),
        wheel("nvidia-ml-py"),
        wheel("triton", 190 * MB),
        wheel("tqdm"),
        wheel("numpy", 17 * MB),
    ]
    layers = wheel_layers([Contents(one) for one in wheels], cap=500 * MB)
    assert [(layer.change, layer.holds) for layer in layers] == [
        (Change.CUDA, "nvidia-cublas 1.0"),
        (Change.CUDA, "nvidia-nccl-cu13 1.0"),
        (Change.CUDA, "2 small CUDA wheels"),
        (Change.FRAMEWORK, "torch 1.0"),
        (Change.LARGE, "triton 1.0"),
        (Change.WHEELS, "3 wheels"),
    ]
    planned = plan_layers(definition(wheels={"requirements": "r", "lock": "l"}), [Contents(one) for one in wheels])
    assert [one.change for one in planned[-2:]] == [Change.LOADER, Change.TOOLS]


def test_another_small_wheel_changes_one_layer() -> None:
    wheels = [wheel("torch", 500 * MB), wheel("nvidia-cublas", 400 * MB), wheel("tqdm"), wheel("numpy", 17 * MB)]
    newer = [*wheels[:2], wheel("tqdm", version="1.1"), wheels[3]]
    before, after = (wheel_layers([Contents(one) for one in each], cap=500 * MB) for each in (wheels, newer))
    assert [one.change for one, other in zip(before, after, strict=True) if one != other] == [Change.WHEELS]


@given(
    st.lists(st.integers(min_value=1, max_value=300), min_size=1, max_size=40), st.integers(min_value=50, max_value=200)
)
def test_parts_of_a_wheel_hold_each_file_once_and_stay_below_the_cap(sizes: list[int], cap: int) -> None:
    files = tuple(WheelFile(f"a/{number}", size * 2, size) for number, size in enumerate(sizes))
    content = Contents(wheel("torch", sum(sizes)), files)
    layers = wheel_layers([content], cap=cap)
    if len(layers) == 1 and layers[0].paths is None:
        assert sum(sizes) <= cap
        return
    told = [path for layer in layers for path in layer.paths or ()]
    assert sorted(told) == sorted(file.path for file in files)
    weights = {file.path: file.compressed for file in files}
    for layer in layers:
        assert layer.size <= cap or len(layer.paths or ()) == 1
        assert layer.size == sum(weights[path] for path in layer.paths or ())
    # The order in which the wheel lists its files says nothing.
    assert wheel_layers([replace(content, files=files[::-1])], cap=cap) == layers


def test_small_wheels_over_the_cap_make_several_layers() -> None:
    layers = wheel_layers([Contents(wheel(f"w{number}", 10 * MB)) for number in range(5)], cap=25 * MB)
    assert [(layer.name, layer.size) for layer in layers] == [
        ("2 wheels (1 of 3)", 20 * MB),
        ("2 wheels (2 of 3)", 20 * MB),
        ("w4 1.0 (3 of 3)", 10 * MB),
    ]


def test_pins_that_nothing_meets_are_told() -> None:
    pins = {
        "torch": "2.12.1",
        "cuda": "13.0",
        "cudnn": "9.20.0.48",
        "nccl": "2.30.7",
        "python": "3.12",
        "git": "1:2.39",
    }
    wheels = [
        wheel("torch", version="2.12.1"),
        wheel("cuda-toolkit", version="13.0.2"),
        wheel("nvidia-nccl-cu13", version="2.29.7"),
    ]
    pins.pop("git")
    assert pin_problems(definition(pins=pins), wheels) == [
        ("pins.cudnn", "is 9.20.0.48, but nothing in the image installs it"),
        ("pins.nccl", "is 2.30.7, but the lock has nvidia-nccl-cu13 2.29.7"),
        ("pins.python", "is 3.12, but the image has Python 3.11"),
    ]


@pytest.mark.parametrize(
    ("wanted", "version", "answer"),
    [
        ("13.0", "13.0.2", True),
        ("13.0.1", "13.0.2", False),
        ("2.12.1", "2.12.1+cu130", True),
        ("2.1", "2.12", False),
        ("3.11", "3.11", True),
    ],
)
def test_a_pin_says_as_much_as_it_says(wanted: str, version: str, answer: bool) -> None:
    assert agrees(wanted, version) is answer


def layer(size: int, tar_size: int = 0) -> PlannedLayer:
    return PlannedLayer(Change.WHEELS, "x", size=size, tar_size=tar_size, known="wheel")


def test_time_is_that_of_the_link_where_unpacking_is_quick() -> None:
    told = predict([layer(100 * MB, 1), layer(300 * MB, 1)], Node(link=100 * MB, unpack=10**15))
    assert told.total_s == pytest.approx(4.0)
    assert told.one_layer_s == pytest.approx(4.0)


def test_unpacking_runs_while_the_next_layer_comes() -> None:
    layers = [layer(100 * MB, 100 * MB) for _ in range(10)]
    told = predict(layers, Node(link=100 * MB, unpack=100 * MB, parallel=1))
    assert told.total_s == pytest.approx(11.0)
    assert told.one_layer_s == pytest.approx(20.0)


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), max_size=20), st.integers(1, 6))
def test_many_layers_never_take_longer_than_one(sizes: list[tuple[int, int]], parallel: int) -> None:
    told = predict([layer(*each) for each in sizes], Node(parallel=parallel))
    assert told.total_s <= told.one_layer_s + 1e-6
    assert told.total_s + 1e-6 >= max(told.pull_s, told.unpack_s)


def test_what_is_not_known_is_named() -> None:
    assert predict(plan_layers(definition("packages"))).unknown == (
        "Debian 12, Python 3.11",
        "packages git",
        "gpu-check",
    )
