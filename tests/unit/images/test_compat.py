"""Image verdicts: a table of (driver, GPU, image) against the published rules, what is not known, and properties."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from myriad.errors import InputError
from myriad.fleet.catalog import CATALOG
from myriad.images import compat
from myriad.images.compat import ImageFacts, NodeGroup, Verdict, image_facts, own_facts, variant_facts, verdict
from myriad.images.compat_facts import dotted, major
from myriad.images.definition import Gpu, ImageDefinition, load_definition, runtime_folders

FACTS = own_facts()

H100, H200, A100, L40S, T4 = "H100-SXM5-80GB", "H200", "A100-SXM4-80GB", "L40S", "T4"
V100, P100, P40, B200, B300 = "V100-SXM2-32GB", "P100-PCIe-16GB", "P40", "B200", "B300"
R5090, R4090, R3090, A6000, PRO = "RTX-5090", "RTX-4090", "RTX-3090", "RTX-A6000", "RTX-PRO-6000-BSE"

# driver, GPU, image (+compat: with NVIDIA's package cuda-compat in it), verdict, rule, source (key of compat_facts.yml)
TABLE = [
    # Native: the driver is the toolkit's own or newer (release notes, Table 3). Full versions count.
    ("580.126.20", H100, "pytorch-2.12-cu130", "native", "driver-floor", "release-notes"),
    ("580.65.06", H100, "pytorch-2.12-cu130", "native", "driver-floor", "release-notes"),
    ("580.65.06", A100, "cuda-13.0", "native", "driver-floor", "release-notes"),
    ("595.45.04", H200, "pytorch-2.12-cu132", "native", "driver-floor", "release-notes"),
    ("560.28.03", V100, "pytorch-2.12-cu126", "native", "driver-floor", "release-notes"),
    ("570.26", L40S, "pytorch-2.8-cu128", "native", "driver-floor", "release-notes"),
    ("575.51.03", A100, "pytorch-2.8-cu129", "native", "driver-floor", "release-notes"),
    ("520.61.05", A100, "pytorch-2.3-cu118", "native", "driver-floor", "release-notes"),
    ("450.51.06", A100, "cuda-11.0", "refused", "driver-before-card", "myriad.fleet.gpu_rows"),
    ("450.51.06", T4, "cuda-11.0", "native", "driver-floor", "release-notes"),
    # Backward: a newer driver runs older CUDA, also one newer than the facts.
    ("610.43.02", H100, "pytorch-2.3-cu118", "native", "driver-floor", "release-notes"),
    ("580.126.20", V100, "pytorch-2.3-cu121", "native", "driver-floor", "release-notes"),
    ("640.10.01", H200, "pytorch-2.12-cu130", "native", "backward", "release-notes"),
    ("640.10.01", A100, "cuda-12.0", "native", "backward", "release-notes"),
    # Minor-version: from the family's floor on, below the toolkit's own driver.
    ("550.54.14", R4090, "pytorch-2.8-cu128", "minor-version", "minor-version", "minor-version"),
    ("565.57.01", R4090, "pytorch-2.8-cu128", "minor-version", "minor-version", "minor-version"),
    ("535.309.01", H100, "pytorch-2.12-cu126", "minor-version", "minor-version", "minor-version"),
    ("535.309.01", V100, "pytorch-2.12-cu126", "minor-version", "minor-version", "minor-version"),
    ("525.60.13", A100, "pytorch-2.10-cu128", "minor-version", "minor-version", "minor-version"),
    ("580.126.20", H100, "pytorch-2.13-cu132", "minor-version", "minor-version", "minor-version"),
    ("580.82.07", A100, "cuda-13.0.2", "minor-version", "minor-version", "minor-version"),
    ("560.35.03", A100, "cuda-12.6.3", "minor-version", "minor-version", "minor-version"),
    ("450.80.02", A100, "cuda-11.7", "minor-version", "minor-version", "minor-version"),
    ("470.82.01", T4, "pytorch-2.5-cu118", "minor-version", "minor-version", "minor-version"),
    ("535.309.01", L40S, "cuda-12.5", "minor-version", "minor-version", "minor-version"),
    # Below the family's floor, and no way forward.
    ("580.65.05", H100, "pytorch-2.12-cu130", "refused", "family-floor", "minor-version"),
    ("535.309.01", H100, "pytorch-2.12-cu130", "refused", "family-floor", "minor-version"),
    ("575.57.08", A100, "cuda-13.0", "refused", "family-floor", "minor-version"),
    ("525.60.12", A100, "pytorch-2.8-cu126", "refused", "family-floor", "minor-version"),
    ("470.82.01", A100, "pytorch-2.4-cu121", "refused", "family-floor", "minor-version"),
    ("450.80.01", T4, "cuda-11.8", "refused", "family-floor", "minor-version"),
    ("570.133.20", R5090, "pytorch-2.12-cu130", "refused", "family-floor", "minor-version"),
    # Forward: cuda-compat in the image, a data-centre card, a branch of the list of that CUDA.
    ("535.309.01", H100, "cuda-13.0+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("535.309.01", A100, "pytorch-2.12-cu130+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("575.57.08", H200, "cuda-13.0+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("550.54.14", A100, "cuda-12.8+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("470.82.01", A100, "cuda-12.8+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("470.82.01", V100, "cuda-12.4+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("590.48.01", A100, "cuda-13.2+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("545.23.08", A100, "cuda-12.8+compat", "refused", "forward-branch", "cuda-images"),
    ("560.35.05", H100, "cuda-13.0+compat", "refused", "forward-branch", "cuda-images"),
    ("470.82.01", A100, "cuda-12.9+compat", "refused", "forward-branch", "cuda-images"),
    ("575.57.08", H100, "cuda-13.1+compat", "forward-compat", "forward-branch", "cuda-images"),
    ("560.35.05", H100, "cuda-13.1+compat", "refused", "forward-branch", "cuda-images"),
    ("595.45.04", H100, "cuda-13.3+compat", "unknown", "forward-branch", "cuda-images"),
    ("595.45.04", H100, "cuda-13.4.1+compat", "unknown", "forward-branch", "forward"),
    # The package is not loaded where the driver's branch is as new as its own: plain rules again.
    ("580.126.20", R4090, "cuda-13.0+compat", "native", "driver-floor", "release-notes"),
    ("570.26", R4090, "cuda-12.8.1+compat", "minor-version", "minor-version", "minor-version"),
    # Error 804: cuda-compat would be loaded on a card that it is not for, although minor-version would do.
    ("550.54.14", R4090, "cuda-12.8+compat", "refused", "forward-hardware", "forward"),
    ("535.309.01", R3090, "cuda-13.0+compat", "refused", "forward-hardware", "forward"),
    ("550.54.14", A6000, "cuda-12.8+compat", "unknown", "forward-hardware", "forward"),
    # Code for the card: what the wheels are compiled for.
    ("535.309.01", V100, "pytorch-2.12-cu130", "refused", "arch-missing", "torch-archs"),
    ("580.126.20", V100, "pytorch-2.11-cu128", "refused", "arch-missing", "torch-archs"),
    ("580.126.20", V100, "pytorch-2.10-cu128", "native", "driver-floor", "release-notes"),
    ("580.126.20", V100, "pytorch-2.7-cu128", "refused", "arch-missing", "torch-archs"),
    ("580.126.20", P40, "pytorch-2.12-cu126", "native", "driver-floor", "release-notes"),
    ("580.126.20", P100, "pytorch-2.8-cu128", "refused", "arch-missing", "torch-archs"),
    ("580.126.20", L40S, "pytorch-2.12-cu130", "native", "driver-floor", "release-notes"),
    ("580.126.20", T4, "pytorch-2.14-cu130", "native", "driver-floor", "release-notes"),
    # Blackwell: both bounds.
    ("580.126.20", B200, "pytorch-2.7-cu128", "native", "driver-floor", "release-notes"),
    ("580.126.20", B200, "pytorch-2.7-cu118", "refused", "blackwell-both-bounds", "torch-blackwell"),
    ("580.126.20", B200, "pytorch-2.7-cu126", "refused", "blackwell-both-bounds", "torch-blackwell"),
    ("580.126.20", R5090, "pytorch-2.6-cu124", "refused", "blackwell-both-bounds", "torch-blackwell"),
    ("580.126.20", R5090, "pytorch-2.12-cu126", "refused", "blackwell-both-bounds", "torch-blackwell"),
    ("580.126.20", B300, "pytorch-2.12-cu130", "native", "driver-floor", "release-notes"),
    ("580.126.20", PRO, "pytorch-2.8-cu128", "native", "driver-floor", "release-notes"),
    ("570.133.20", B200, "pytorch-2.8-cu128", "native", "driver-floor", "release-notes"),
    # Code for the card: what toolkits compile for.
    ("580.126.20", V100, "cuda-13.0", "refused", "arch-dropped", "architectures"),
    ("580.126.20", P40, "cuda-12.9", "native", "driver-floor", "release-notes"),
    ("580.126.20", B200, "cuda-12.6", "refused", "arch-before-toolkit", "architectures"),
    ("580.126.20", H100, "cuda-11.7", "refused", "arch-before-toolkit", "architectures"),
    ("580.126.20", R3090, "cuda-11.0", "native", "driver-floor", "release-notes"),
    # The driver and the card itself.
    ("550.54.14", B200, "pytorch-2.8-cu128", "refused", "driver-before-card", "myriad.fleet.gpu_rows"),
    ("535.309.01", H200, "pytorch-2.6-cu124", "refused", "driver-before-card", "myriad.fleet.gpu_rows"),
    ("595.58.03", V100, "pytorch-2.12-cu126", "refused", "driver-after-card", "architectures"),
    ("590.44.01", P40, "cuda-12.6", "refused", "driver-after-card", "architectures"),
    # What is no combination at all.
    ("580.126.20", H100, "pytorch-2.12-cu128", "refused", "no-such-wheel", "torch-matrix"),
    ("580.126.20", H100, "cuda-12.7", "refused", "no-such-cuda", "release-notes"),
    # Beyond the facts: said, never guessed.
    ("580.126.20", H100, "pytorch-2.15-cu130", "unknown", "torch-newer", "torch-matrix"),
    ("580.126.20", H100, "pytorch-2.1-cu118", "unknown", "torch-older", "torch-matrix"),
    ("580.126.20", H100, "cuda-14.0", "unknown", "cuda-newer", "release-notes"),
    ("620.10.01", H100, "cuda-13.4.1", "minor-version", "minor-version", "minor-version"),
    ("580.126.20", H100, "cuda-13.9", "minor-version", "minor-version", "minor-version"),
    # Other processors and other makers' cards.
    ("580.126.20", "GH200-96GB", "pytorch-2.12-cu130", "refused", "cpu-architecture", "myriad.fleet.gpu_rows"),
    ("580.126.20", "GB200", "pytorch-2.12-cu130", "refused", "cpu-architecture", "myriad.fleet.gpu_rows"),
    ("", "MI300X", "pytorch-2.12-cu130", "refused", "no-nvidia-gpu", "myriad.fleet.gpu_rows"),
    ("", "Ascend910B", "cuda-12.8", "refused", "no-nvidia-gpu", "myriad.fleet.gpu_rows"),
]


def image(name: str) -> ImageFacts:
    plain = name.removesuffix("+compat")
    found = variant_facts(plain) or ImageFacts(name="cuda", cuda=plain.removeprefix("cuda-"))
    return replace(found, cuda_compat=name.endswith("+compat"))


def group(driver: str, model: str, **more: bool) -> NodeGroup:
    return NodeGroup(pool="p", model=model, driver=driver, **more)


@pytest.mark.parametrize(
    ("driver", "model", "name", "level", "rule", "source"),
    TABLE,
    ids=[f"{row[4]}:{row[0] or 'none'}/{row[1]}/{row[2]}" for row in TABLE],
)
def test_the_table(driver: str, model: str, name: str, level: str, rule: str, source: str) -> None:
    told = verdict(image(name), group(driver, model))
    assert (told.level, told.rule, told.source) == (level, rule, FACTS.sources.get(source, source)), told.reason
    assert told.reason and not told.reason.endswith(".")
    assert told.runs == (level not in ("refused", "unknown"))
    assert not (told.runs and told.fix)


def test_the_table_is_long_enough_and_asks_every_rule() -> None:
    assert len({row[:3] for row in TABLE}) == len(TABLE) >= 60
    others = {"gpu-unknown", "no-gpu", "no-cuda", "driver-unknown", "driver-incomplete", "driver-before-mig"}
    others |= {"ptx-needs-driver", "no-such-python", "cuda-older"}
    assert {row[4] for row in TABLE} | others == RULES


RULES = {
    *("no-cuda", "no-gpu", "no-nvidia-gpu", "gpu-unknown", "cpu-architecture"),
    *("no-such-cuda", "no-such-wheel", "no-such-python", "cuda-newer", "cuda-older", "torch-newer", "torch-older"),
    *("arch-missing", "arch-dropped", "arch-before-toolkit", "blackwell-both-bounds", "ptx-needs-driver"),
    *("driver-unknown", "driver-incomplete", "driver-before-card", "driver-after-card", "driver-before-mig"),
    *("driver-floor", "backward", "minor-version", "family-floor", "forward-branch", "forward-hardware"),
}


def test_the_decision_names_every_rule() -> None:
    text = (Path(__file__).parents[3] / "docs/adr/0020-image-verdicts.md").read_text(encoding="utf-8")
    assert {rule for rule in RULES if f"`{rule}`" not in text} == set()


# Fixes


def fix(driver: str, model: str, name: str, **more: bool) -> str:
    return verdict(image(name), group(driver, model, **more)).fix


def test_v100_gets_the_same_torch_with_the_last_cuda_for_it() -> None:
    assert fix("535.309.01", V100, "pytorch-2.12-cu130").startswith(
        "pytorch-2.12-cu126 (minor-version, native from 560.28.03)"
    )


def test_a_patch_of_the_same_branch_is_smaller_than_another_image() -> None:
    assert fix("580.65.05", H100, "pytorch-2.12-cu130").startswith("driver >= 580.65.06; or pytorch-2.12-cu126")


def test_an_older_branch_gets_an_image_first_then_a_driver_then_cuda_compat() -> None:
    assert fix("535.309.01", H100, "pytorch-2.12-cu130").split("; or ") == [
        "pytorch-2.12-cu126 (minor-version, native from 560.28.03)",
        "driver >= 580.65.06",
        "cuda-compat-13-0 in the image (forward compatibility)",
    ]
    assert "cuda-compat" not in fix("535.309.01", R4090, "pytorch-2.12-cu130")


def test_error_804_is_cured_by_leaving_the_package_out() -> None:
    assert fix("550.54.14", R4090, "cuda-12.8+compat").startswith("the same image without cuda-compat (minor-version")


def test_blackwell_gets_the_nearest_torch_that_has_both_bounds() -> None:
    assert fix("580.126.20", B200, "pytorch-2.6-cu124") == "pytorch-2.7-cu128 (native)"
    assert fix("580.126.20", B200, "pytorch-2.12-cu126") == "pytorch-2.12-cu130 (native)"


def test_where_image_and_driver_are_both_wrong_both_are_named() -> None:
    assert fix("595.58.03", V100, "pytorch-2.12-cu130") == "pytorch-2.12-cu126 and driver of branch R580"
    assert fix("595.58.03", V100, "pytorch-2.12-cu126") == "driver of branch R580"


def test_the_python_of_a_wheel_that_does_not_exist() -> None:
    told = verdict(replace(image("pytorch-2.8-cu128"), python="3.14"), group("580.126.20", H100))
    assert (told.level, told.rule) == ("refused", "no-such-python")
    assert told.fix.startswith("pytorch-2.8-cu128 (native, Python 3.13)")


def test_other_makers_cards_get_no_fix() -> None:
    assert fix("", "MI300X", "pytorch-2.12-cu130") == ""


def test_one_variant_for_a_mixed_fleet() -> None:
    mixed = [group("580.126.20", H100), group("535.309.01", V100), group("570.133.20", B200)]
    found = compat.common_variant(image("pytorch-2.12-cu130"), mixed)
    assert found is not None and compat.variant_name(found, "pytorch") == "pytorch-2.10-cu128"
    assert compat.common_variant(image("pytorch-2.12-cu130"), [*mixed, group("580.126.20", P40)]) is None


# What is not known


@pytest.mark.parametrize(
    ("found", "rule", "words"),
    [
        (NodeGroup(pool="a", model=H100), "driver-unknown", "nobody says which driver"),
        (NodeGroup(pool="a", model=H100, driver="580"), "driver-incomplete", "no full driver version"),
        (NodeGroup(pool="a", model=H100, driver="latest"), "driver-incomplete", "no full driver version"),
        (NodeGroup(pool="a", model="X999", driver="580.126.20"), "gpu-unknown", 'the catalog has no GPU "X999"'),
        (NodeGroup(pool="a", model="X", capability="11.0", driver="620.1.1"), "gpu-unknown", "names sm_110"),
    ],
)
def test_what_nobody_knows_is_said(found: NodeGroup, rule: str, words: str) -> None:
    told = verdict(image("cuda-13.0"), found)
    assert (told.level, told.rule) == ("unknown", rule)
    assert words in told.reason and not told.runs


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("535.104.05-1", "535.104.05"),
        ("R535", "535"),
        (" v580.95.05 ", "580.95.05"),
        ("580.95.05-0ubuntu1.22.04", "580.95.05"),
        ("1:580.95.05~deb12", "580.95.05"),
        ("580-server", "580"),
        ("latest", "latest"),
        ("5800.1", "5800.1"),
    ],
)
def test_a_driver_as_people_and_packages_write_it(written: str, read: str) -> None:
    assert verdict(image("cuda-12.8"), NodeGroup(pool="a", model=H100, driver=written)).group.driver == read


@pytest.mark.parametrize(
    ("driver", "name", "level", "rule"),
    [
        ("535", "pytorch-2.12-cu130", "refused", "family-floor"),
        ("R570", "pytorch-2.12-cu130", "refused", "family-floor"),
        ("R535", "pytorch-2.12-cu126", "minor-version", "minor-version"),
        ("R590", "pytorch-2.12-cu130", "native", "driver-floor"),
        ("580", "pytorch-2.12-cu130", "unknown", "driver-incomplete"),
        ("580.65", "pytorch-2.12-cu130", "unknown", "driver-incomplete"),
        ("570.26", "pytorch-2.8-cu128", "native", "driver-floor"),
        ("１８０.1", "pytorch-2.8-cu128", "unknown", "driver-incomplete"),
    ],
)
def test_half_a_version_is_enough_where_all_that_begin_so_agree(driver: str, name: str, level: str, rule: str) -> None:
    told = verdict(image(name), NodeGroup(pool="a", model=A100, driver=driver), today=date(2026, 11, 30))
    assert (told.level, told.rule) == (level, rule)
    assert bool([one for one in told.warnings if "end of life" in one]) is ("535" in driver)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("H100", "name it as the catalog does: H100-SXM5-80GB, "),
        ("nvidia_l40-s", "name it as the catalog does: L40S"),
        ("K80", "a row of myriad.fleet.gpu_rows"),
    ],
)
def test_a_card_that_the_catalog_lacks_comes_with_what_to_do(model: str, words: str) -> None:
    told = verdict(image("cuda-12.8"), NodeGroup(pool="a", model=model, driver="580.126.20"))
    assert told.rule == "gpu-unknown" and words in told.fix


def test_without_a_driver_the_fix_says_what_it_needs_and_how_to_say_it() -> None:
    told = verdict(image("pytorch-2.12-cu130"), NodeGroup(pool="h100", model=H100))
    assert told.fix == (
        "give --driver h100=VERSION, or --kubeconfig for what the nodes report; it runs with driver >= 580.65.06"
    )
    assert verdict(image("pytorch-2.12-cu130"), NodeGroup(pool="v", model=V100)).rule == "arch-missing"


def test_nodes_without_gpus_and_images_without_cuda() -> None:
    assert verdict(image("cuda-12.8"), NodeGroup(pool="cpu")).rule == "no-gpu"
    for found in (NodeGroup(pool="cpu"), group("", "MI300X"), group("450.80.02", H100)):
        told = verdict(ImageFacts(name="gang-check"), found, today=date(2026, 11, 29))
        assert (told.level, told.rule, told.warnings) == ("native", "no-cuda", ())


def test_a_cuda_before_the_facts_runs_by_the_backward_rule_only() -> None:
    old = ImageFacts(name="old", cuda="10.2", compiled=("7.5",))
    told = verdict(old, group("535.309.01", T4))
    assert (told.level, told.rule) == ("native", "backward")
    assert told.reason.startswith("CUDA 10.2 is older than the facts, and newer drivers run it")
    assert verdict(old, group("440.33.01", T4)).rule == "cuda-older"


def test_ptx_needs_the_toolkits_own_driver() -> None:
    built = ImageFacts(name="own", cuda="12.4", compiled=("8.0+PTX",))
    assert verdict(built, group("550.54.14", H100)).reason.endswith("its PTX is compiled at start")
    told = verdict(built, group("535.309.01", H100))
    assert (told.level, told.rule, told.fix) == ("refused", "ptx-needs-driver", "driver >= 550.54.14")
    assert verdict(built, group("535.309.01", A100)).level == "minor-version"
    assert verdict(replace(built, cuda="13.4.1"), group("620.10.01", H100)).level == "unknown"


@pytest.mark.parametrize(
    ("archs", "model", "runs"),
    [(("8.6",), L40S, True), (("8.6",), A100, False), (("9.0",), PRO, False), (("10.0",), B300, True)],
)
def test_compiled_code_runs_on_newer_cards_of_its_major_only(archs: tuple[str, ...], model: str, runs: bool) -> None:
    built = ImageFacts(name="own", cuda="12.8", compiled=archs)
    assert verdict(built, group("580.126.20", model)).runs is runs


# MIG


def test_a_cut_card_needs_a_driver_that_can_cut_it() -> None:
    name = image("pytorch-2.8-cu128")
    told = verdict(name, group("570.133.07", PRO.replace("BSE", "WS"), mig=True))
    assert (told.level, told.rule) == ("refused", "driver-before-mig")
    assert told.fix == "driver >= 575.51.03"
    assert verdict(name, group("570.133.07", PRO.replace("BSE", "WS"))).level == "native"
    assert verdict(name, group("580.126.20", H100, mig=True)).level == "native"


# Life of branches


def test_a_branch_without_fixes_is_a_warning_and_no_refusal() -> None:
    told = verdict(image("pytorch-2.12-cu126"), group("535.309.01", H100), today=date(2026, 11, 29))
    assert told.runs
    assert told.warnings == (
        "driver branch R535 (long-term support) reached its end of life in June 2026: no more security fixes",
    )
    assert verdict(told.image, told.group, today=date(2026, 6, 30)).warnings == (
        "driver branch R535 (long-term support) reaches its end of life in June 2026",
    )
    assert verdict(told.image, told.group, today=date(2025, 11, 29)).warnings == ()
    assert verdict(told.image, told.group).warnings == ()


@pytest.mark.parametrize(
    ("driver", "words"), [("560.35.05", "is not among those that NVIDIA lists"), ("640.1.1", "newer than the facts")]
)
def test_branches_without_a_row(driver: str, words: str) -> None:
    (warning,) = verdict(image("pytorch-2.12-cu126"), group(driver, H100), today=date(2026, 11, 29)).warnings
    assert words in warning


# Properties


def _drivers() -> list[str]:
    own = {row.driver for row in FACTS.toolkits if row.driver} | {row.driver for row in FACTS.families}
    below = {f"{major(driver)}.1.1" for driver in own}
    return sorted(own | below | {"580.126.20", "535.309.01", "565.57.01", "640.10.01"}, key=dotted)


NAMES = [f"pytorch-{row.torch}-cu{cuda.replace('.', '')}" for row in FACTS.torch for cuda in row.cuda]
NAMES += [f"cuda-{release}" for release, _ in FACTS.releases]
MODELS = sorted(name for name, model in CATALOG.items() if model.vendor == "nvidia")
RANK = {"refused": 0, "unknown": 0, "forward-compat": 1, "minor-version": 1, "native": 2}
LAST = {"volta": 580, "pascal": 580, "maxwell": 580}


def ask(name: str, model: str, driver: str) -> Verdict:
    return verdict(image(name), group(driver, model))


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from([*NAMES, *(f"{name}+compat" for name in NAMES)]),
    model=st.sampled_from(MODELS),
    pair=st.lists(st.sampled_from(_drivers()), min_size=2, max_size=2),
)
def test_a_newer_driver_never_takes_native_away(name: str, model: str, pair: list[str]) -> None:
    older, newer = sorted(pair, key=dotted)
    if ask(name, model, older).level == "native" and major(newer) <= LAST.get(CATALOG[model].architecture, 999):
        assert ask(name, model, newer).level == "native"


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(NAMES),
    model=st.sampled_from(MODELS),
    pair=st.lists(st.sampled_from(_drivers()), min_size=2, max_size=2),
)
def test_without_cuda_compat_a_newer_driver_is_never_worse(name: str, model: str, pair: list[str]) -> None:
    older, newer = sorted(pair, key=dotted)
    if major(newer) <= LAST.get(CATALOG[model].architecture, 999):
        assert RANK[ask(name, model, newer).level] >= RANK[ask(name, model, older).level]


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), model=st.sampled_from(MODELS), driver=st.sampled_from(_drivers()))
def test_what_a_fix_offers_runs(name: str, model: str, driver: str) -> None:
    told = ask(name, model, driver)
    for offer in told.fix.split("; or ") if told.fix else ():
        wanted, _, changed = offer.partition(" and driver ")
        after, where = told.image, told.group
        if wanted.startswith("driver "):
            changed = wanted.removeprefix("driver ")
        elif wanted.startswith("cuda-compat-"):
            after = replace(after, cuda_compat=True)
        else:
            found = variant_facts(wanted.split(" ")[0])
            assert found is not None
            after = found
        if changed.startswith(">= "):
            where = replace(where, driver=changed.removeprefix(">= "))
            assert dotted(where.driver) > dotted(driver)
        elif changed:
            where = replace(where, driver=f"{changed.removeprefix('of branch R')}.126.20")
        assert verdict(after, where).runs, offer


@settings(max_examples=150, deadline=None)
@given(name=st.sampled_from(NAMES), model=st.sampled_from(MODELS), driver=st.sampled_from(_drivers()))
def test_native_is_said_exactly_from_needs_on(name: str, model: str, driver: str) -> None:
    told = ask(name, model, driver)
    if told.level == "minor-version" and told.needs:
        assert dotted(told.needs) > dotted(driver)
        assert ask(name, model, told.needs).level == "native"


# image.yml


def definition(**gpu: object) -> ImageDefinition:
    return ImageDefinition(
        repo="x", title="x", entrypoint=("x",), budget_mb=1, gpu=Gpu.model_validate(gpu) if gpu else None
    )


def test_image_yml_is_read() -> None:
    found = image_facts(definition(torch="2.12.1+cu130", archs=("7.0", "9.0")), "pytorch", python="3.11")
    assert (found.torch, found.cuda, found.python) == ("2.12.1", "13.0", "3.11")
    assert compat.uncovered(found) == ("7.0",)
    assert compat.driver_floor(found) == "580.65.06"
    assert image_facts(definition(), "x") == ImageFacts(name="x")
    assert not image_facts(definition(torch="2.12.1+cpu"), "x").needs_gpu


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ({"torch": "2.12.1"}, "cuda is missing"),
        ({"torch": "2.12.1+cu130", "cuda": "12.6"}, "wheel of CUDA 13.0, but cuda says 12.6"),
        ({"torch": "2.12.1+cpu", "cuda": "13.0"}, "a build for CPUs, but cuda says 13.0"),
        ({"kind": "pytorch", "cuda": "13.0"}, "torch is missing"),
        ({"torch": "2.12.1.dev3", "cuda": "13.0"}, "no version such as"),
        ({"cuda": "13.0.2-1"}, "no version such as"),
    ],
)
def test_an_image_yml_that_contradicts_itself(gpu: dict[str, str], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        image_facts(definition(**gpu), "pytorch")
    assert caught.value.where == "images/pytorch/image.yml: gpu"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (ImageFacts(name="x", cuda="12.7"), "there is no CUDA 12.7 toolkit"),
        (ImageFacts(name="x", cuda="14.0"), "CUDA 14.0 is newer than the facts"),
        (ImageFacts(name="x", cuda="12.8", torch="2.12.1"), "there is no wheel of torch 2.12 for CUDA 12.8"),
        (
            ImageFacts(name="x", cuda="13.0", torch="2.12.1", archs=("7.0", "9.0")),
            "gpu.archs wants sm_70; torch 2.12 with CUDA 13.0 has code for sm_75, sm_80, sm_86, sm_90, sm_100, "
            "sm_120+PTX; x-2.12-cu126 has it",
        ),
        (ImageFacts(name="x", cuda="13.0", archs=("7.0",)), "gpu.archs wants sm_70; CUDA 13.0 has code for sm_75"),
    ],
)
def test_what_is_wrong_with_an_image_on_any_node_is_known_before_it_is_built(facts: ImageFacts, words: str) -> None:
    (told,) = compat.faults(facts)
    assert words in told


def test_the_shipped_images_have_no_fault() -> None:
    folders = runtime_folders(Path(__file__).parents[3] / "images")
    for folder in folders:
        own = load_definition(folder)
        assert compat.faults(image_facts(own, folder.name, python=own.python_version)) == (), folder.name


def test_a_number_without_quotes_is_refused_because_yaml_drops_zeros() -> None:
    with pytest.raises(ValueError, match=r'write it in quotes: "12\.1"'):
        Gpu.model_validate({"cuda": 12.10})
    with pytest.raises(ValueError, match="write it in quotes"):
        Gpu.model_validate({"cuda": "12.8", "archs": [9.0]})


@pytest.mark.parametrize(
    "wrong", [{"cuda": "x"}, {"cuda": "13"}, {"cuda": "130.0"}, {"cuda": "13.0", "archs": ("sm_90",)}]
)
def test_facts_that_are_no_versions_are_refused_when_they_are_made(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is no "):
        ImageFacts(name="x", **wrong)  # type: ignore[arg-type]


def test_a_variant_is_known_by_the_name_that_the_matrix_gives_it() -> None:
    found = variant_facts("pytorch-2.12-cu130-py311")
    assert found == ImageFacts(name="pytorch", torch="2.12", cuda="13.0", python="3.11")
    assert verdict(found, group("580.126.20", H100)).level == "native"
    older = variant_facts("pytorch-2.12-cu130-py38")
    assert older is not None and verdict(older, group("580.126.20", H100)).rule == "no-such-python"


@pytest.mark.parametrize("name", ["pytorch", "gang-check", "extension", "pytorch-2.12", "pytorch-cu126", "x-12.8.1"])
def test_what_is_no_name_of_a_variant(name: str) -> None:
    assert variant_facts(name) is None
