"""NVIDIA_REQUIRE_CUDA: its syntax as the container runtime reads it, and that it says what the verdict says."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.fleet.catalog import CATALOG
from myriad.images.compat import ImageFacts, NodeGroup, own_facts, require_cuda, variant_facts, verdict, why_require
from myriad.images.compat_facts import cubin_intervals, dotted, inside, ptx_interval
from myriad.images.compat_require import Host, faults_for_semver, satisfied, vendor_require

FACTS = own_facts()


def image(name: str, *, compat: bool = False) -> ImageFacts:
    found = variant_facts(name)
    assert found is not None
    return ImageFacts(name=name, torch=found.torch, cuda=found.cuda, cuda_compat=compat)


# Syntax

A100_565 = Host(cuda="12.7", driver="565.57.01", arch="8.0", brand="nvidia")


@pytest.mark.parametrize(
    ("condition", "answer"),
    [
        ("", True),
        ("  ", True),
        ("cuda>=12.7", True),
        ("cuda>=12.8", False),
        ("cuda>12.7", False),
        ("cuda<=12.7", True),
        ("cuda<13", True),
        ("cuda=12.7.0", True),
        ("cuda!=12.7", False),
        ("cuda>=12.10", False),
        ("driver>=565.57.1", True),
        ("driver>=565.57.01,driver<566", True),
        ("driver>=565.58", False),
        ("cuda>=12.8 driver>=525", True),
        ("cuda>=12.8 brand=tesla,driver>=565,driver<566", False),
        ("cuda>=12.8 brand=tesla,driver>=565,driver<566 brand=NVIDIA,driver>=565,driver<566", True),
        ("brand!=geforce", True),
        ("CUDA>=12.0", True),
        ("arch>=8.0,arch<9", True),
        ("arch>=9.0 arch<8", False),
        (",,cuda>=12.0,", True),
    ],
)
def test_blank_is_or_and_comma_is_and(condition: str, answer: bool) -> None:
    assert satisfied(condition, A100_565) is answer


@pytest.mark.parametrize(
    "condition", ["cuda", "cuda>=", ">=12", "cuda=>12.0", "cuda==12.0", "gpu>=1", "brand>=tesla", "driver>=565.x"]
)
def test_what_the_runtime_calls_an_invalid_expression(condition: str) -> None:
    with pytest.raises(ValueError, match=r"invalid expression|is no version"):
        satisfied(condition, A100_565)


def test_a_wrong_alternative_behind_a_true_one_is_not_read() -> None:
    assert satisfied("cuda>=12.0 nonsense", A100_565)


# What images ask for


def test_the_family_and_the_code_not_the_toolkit() -> None:
    assert require_cuda(image("pytorch-2.8-cu128")) == (
        "cuda>=12.0,driver>=525.60.13,arch>=7.0,arch<11 cuda>=12.0,driver>=525.60.13,arch>=12.0,arch<13"
    )
    assert require_cuda(image("pytorch-2.12-cu126")) == "cuda>=12.0,driver>=525.60.13,arch>=5.0,arch<10"


def test_ptx_asks_for_the_toolkits_own_driver() -> None:
    own = ImageFacts(name="x", cuda="12.4", compiled=("8.0", "9.0+PTX"))
    assert require_cuda(own).split(" ") == [
        "cuda>=12.0,driver>=525.60.13,arch>=8.0,arch<10",
        "cuda>=12.4,driver>=550.54.14,arch>=10",
    ]
    low = ImageFacts(name="x", cuda="12.4", compiled=("7.0+PTX", "9.0"))
    assert require_cuda(low).split(" ")[2:] == [
        "cuda>=12.4,driver>=550.54.14,arch>=8,arch<9.0",
        "cuda>=12.4,driver>=550.54.14,arch>=10",
    ]


def test_c02_a_12_8_image_starts_on_driver_565_of_a_geforce_which_the_vendors_refuses() -> None:
    host = Host(cuda="12.7", driver="565.57.01", arch="8.9", brand="geforcertx")
    assert not satisfied(vendor_require("12.8", ("tesla", "nvidia")), host)
    assert satisfied(require_cuda(image("pytorch-2.8-cu128")), host)
    assert (
        verdict(image("pytorch-2.8-cu128"), NodeGroup(pool="g", model="RTX-4090", driver="565.57.01")).level
        == "minor-version"
    )


def test_c03_a_12_5_image_on_long_term_support_535_with_workstation_cards() -> None:
    host = Host(cuda="12.2", driver="535.309.01", arch="8.6", brand="nvidiartx")
    assert not satisfied(vendor_require("12.5"), host)
    assert satisfied(require_cuda(image("cuda-12.5")), host)


def test_c06_no_kernel_image_is_refused_before_the_start() -> None:
    host = Host(cuda="13.0", driver="580.126.20", arch="12.0", brand="geforcertx")
    assert satisfied(vendor_require("12.4"), host)
    assert not satisfied(require_cuda(image("pytorch-2.6-cu124")), host)


def test_the_vendors_condition_as_it_is_published() -> None:
    assert vendor_require("12.1") == (
        "cuda>=12.1 brand=tesla,driver>=470,driver<471 brand=tesla,driver>=525,driver<526"
    )


def test_an_image_with_cuda_compat_also_names_the_branches_and_brands() -> None:
    told = require_cuda(image("cuda-12.9", compat=True))
    assert "brand=tesla,driver>=535,driver<536,arch>=5.0,arch<11" in told.split(" ")
    assert told.startswith("cuda>=12.0,driver>=575.0,")
    assert not satisfied(told, Host(cuda="12.4", driver="550.54.14", arch="8.9", brand="geforcertx"))
    assert satisfied(told, Host(cuda="12.4", driver="550.54.14", arch="8.9", brand="nvidia"))


def test_no_cuda_no_condition() -> None:
    assert require_cuda(ImageFacts(name="gang-check")) == ""
    assert why_require(ImageFacts(name="gang-check")) == "without CUDA there is nothing to require"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ImageFacts(name="x", cuda="14.0", compiled=("9.0",)), "a driver floor"),
        (ImageFacts(name="x", cuda="13.0", torch="2.15"), "what it is compiled for"),
    ],
)
def test_what_the_facts_do_not_have_is_not_made_up(facts: ImageFacts, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        require_cuda(facts)


def test_why_it_is_not_the_vendors() -> None:
    assert "ask for cuda>=12.8 (driver >= 570.26), but 12.x runs from 525.60.13 on" in why_require(
        image("pytorch-2.8-cu128")
    )
    assert why_require(image("pytorch-2.12-cu130")).startswith("the driver that NVIDIA's images of CUDA 13.0 ask for")
    assert "one of its branches" in why_require(image("cuda-12.9", compat=True))


# Both halves of the container toolkit

NAMES = [f"pytorch-{row.torch}-cu{cuda.replace('.', '')}" for row in FACTS.torch for cuda in row.cuda]
NAMES += [f"cuda-{release}" for release in FACTS.minors]


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_every_bound_is_a_version_to_go_and_every_condition_is_short_enough_for_c(name: str, compat: bool) -> None:
    wanted = image(name, compat=compat)
    if compat and FACTS.native_driver(wanted.cuda) is None:
        with pytest.raises(ValueError, match="from which driver its cuda-compat is"):
            require_cuda(wanted)
        return
    told = require_cuda(wanted)
    assert faults_for_semver(told) == []
    # EXPR_MAX of dsl.c.
    assert all(len(part) < 128 for alternative in told.split(" ") for part in alternative.split(","))


def test_leading_zeros_are_what_go_refuses() -> None:
    assert faults_for_semver("cuda>=13.0,driver>=580.65.06 brand=tesla,driver>=535") == ["580.65.06"]


# The condition says what the verdict says

DRIVERS = sorted(
    {row.driver for row in FACTS.toolkits if row.driver}
    | {"580.126.20", "535.309.01", "565.57.01", "580.65.05", "525.60.12", "450.80.01", "640.10.01", "545.23.08"},
    key=dotted,
)
OUTSIDE = {"driver-before-card", "driver-after-card", "cpu-architecture"}
"""Rules that the condition cannot say."""


def brand_of(model: str) -> str:
    if model in FACTS.products.data_center:
        return "tesla" if CATALOG[model].architecture in ("pascal", "volta", "turing") else "nvidia"
    return "nvidiartx" if model in FACTS.products.workstation else "geforcertx"


@settings(max_examples=400, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    compat=st.booleans(),
    model=st.sampled_from(sorted(name for name, model in CATALOG.items() if model.compute_capability)),
    driver=st.sampled_from(DRIVERS),
)
def test_condition_and_verdict_agree(name: str, compat: bool, model: str, driver: str) -> None:
    wanted = image(name, compat=compat)
    if compat and FACTS.native_driver(wanted.cuda) is None:
        return
    told = verdict(wanted, NodeGroup(pool="p", model=model, driver=driver))
    if told.rule in OUTSIDE:
        return
    host = Host(FACTS.level_of(driver) or "10.2", driver, str(CATALOG[model].compute_capability), brand_of(model))
    assert satisfied(require_cuda(wanted), host) is told.runs, told.reason


# Intervals


def test_intervals_join_where_they_touch() -> None:
    assert cubin_intervals(("7.5", "8.0", "8.6", "9.0", "10.0", "12.0+PTX")) == (("7.5", "11"), ("12.0", "13"))
    assert cubin_intervals(("9.0", "7.0")) == (("7.0", "8"), ("9.0", "10"))
    assert cubin_intervals(()) == ()
    assert ptx_interval(("9.0+PTX", "8.0+PTX")) == ("8.0", None)
    assert ptx_interval(("9.0",)) is None
    assert inside("10.3", (("7.5", "11"),)) and not inside("11.0", (("7.5", "11"),))
