"""Labels of whole machines, and the rules that hold for every label."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from myriad.agent.collect.assemble import portrait_of
from myriad.agent.collect.source import Recorded
from myriad.fleet.derived_labels import derive_labels, is_complete, label_value, layout
from myriad.fleet.portrait import (
    Expected,
    Fabric,
    Gpu,
    Labelling,
    LabelSet,
    Mig,
    MigSlice,
    Observation,
    Portrait,
    Spec,
    facts,
)

MACHINES = sorted(
    folder for folder in (Path(__file__).parents[2] / "fixtures" / "machines").iterdir() if folder.is_dir()
)
AT = "2026-11-29T10:00:00Z"
SPEC = Spec(expected=Expected(location=("hall1", "b1", "r1")), labels={"myriad.dev/pool": "p"})
ALL = Labelling(sets=get_args(LabelSet))
KEY = re.compile(r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")


def looked(folder: Path) -> Portrait:
    return portrait_of("n1", Recorded(folder), AT)[0]


def answer(folder: Path) -> dict[str, Any]:
    portrait = looked(folder)
    return {
        "portrait": portrait.document(),
        "labels": derive_labels(portrait, SPEC, Labelling(sets=("own", "gfd", "topograph"))),
    }


def test_there_are_machines_of_every_kind_and_each_says_where_it_comes_from() -> None:
    assert len(MACHINES) >= 20
    kinds = {folder.name: yaml.safe_load((folder / "provenance.yml").read_text()) for folder in MACHINES}
    for name, about in kinds.items():
        assert about["kind"] in ("recorded", "composed"), name
        wanted = {"recorded": {"by", "changed"}, "composed": {"format", "figures"}}[about["kind"]]
        assert wanted <= about.keys(), name
        assert all(about[key] for key in wanted), name
    assert {about["kind"] for about in kinds.values()} == {"recorded", "composed"}


@pytest.mark.parametrize("folder", MACHINES, ids=lambda folder: folder.name)
def test_portrait_and_labels_of_a_machine(folder: Path) -> None:
    """The whole document, so that nothing changes unseen. Rewrite: python tests/fixtures/machines/expect.py"""
    assert answer(folder) == yaml.safe_load((folder / "expected.yml").read_text())


@pytest.mark.parametrize("folder", MACHINES, ids=lambda folder: folder.name)
def test_every_label_fits_the_rules_and_every_fact_has_a_source(folder: Path) -> None:
    portrait = looked(folder)
    for key, value in derive_labels(portrait, SPEC, ALL).items():
        assert KEY.match(key) and VALUE.match(value) and value, (key, value)
    for fact in facts(portrait):
        assert fact.source and fact.at == AT, fact.path


def machine(name: str) -> Portrait:
    return looked(next(folder for folder in MACHINES if folder.name == name))


def test_a_mixed_node_is_marked_and_never_named_after_its_first_gpu() -> None:
    labels = derive_labels(machine("mixed-models"), SPEC, ALL)
    assert labels["myriad.dev/gpu-product"] == labels["nvidia.com/gpu.product"] == "mixed"
    assert labels["myriad.dev/gpu-count.L40S"] == labels["myriad.dev/gpu-count.A100-SXM4-80GB"] == "2"
    # A number that not all share is no number at all.
    assert not {"myriad.dev/gpu-memory-mib", "nvidia.com/gpu.memory", "nvidia.com/gpu.compute.major"} & labels.keys()
    assert "A100" not in "".join(value for key, value in labels.items())


def test_a_lost_gpu_is_not_counted() -> None:
    portrait = machine("h100-one-lost")
    assert [gpu.index for gpu in portrait.gpus if gpu.fault] == [3]
    labels = derive_labels(portrait, SPEC, ALL)
    assert labels["myriad.dev/gpu-count"] == labels["nvidia.com/gpu.count"] == "7"
    assert labels["myriad.dev/gpu-product"] == "H100-SXM5-80GB"


@pytest.mark.parametrize("name", ["nvml-mismatch", "driver-not-loaded", "no-devices"])
def test_b1_a_driver_that_cannot_be_asked_takes_no_label_away(name: str) -> None:
    portrait = machine(name)
    assert not is_complete(portrait)
    assert derive_labels(portrait, SPEC, Labelling()) == SPEC.labels
    assert is_complete(machine("no-gpu"))


def test_mig_single_says_slices_and_a_broken_single_says_so() -> None:
    single = derive_labels(machine("a100-mig-single"), SPEC, ALL)
    assert single["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb"
    assert single["nvidia.com/gpu.count"] == "14" and single["nvidia.com/gpu.memory"] == "9728"
    assert single["myriad.dev/gpu-count"] == "2" and single["myriad.dev/mig-1g.10gb"] == "14"
    mixed = machine("h100-mig-mixed")
    broken = derive_labels(mixed, SPEC, Labelling(sets=("gfd",), mig_strategy="single"))
    assert broken["nvidia.com/gpu.product"].endswith("-MIG-INVALID") and broken["nvidia.com/gpu.count"] == "0"


def test_mig_mixed_counts_whole_cards_and_each_profile() -> None:
    labels = derive_labels(machine("h100-mig-mixed"), SPEC, ALL)
    assert labels["nvidia.com/mig.strategy"] == labels["myriad.dev/mig-strategy"] == "mixed"
    assert labels["nvidia.com/gpu.count"] == "1"
    assert {k: v for k, v in labels.items() if k.endswith("gb.count")} == {
        "nvidia.com/mig-1g.10gb.count": "2",
        "nvidia.com/mig-2g.20gb.count": "1",
        "nvidia.com/mig-3g.40gb.count": "1",
    }


def test_media_profiles_are_legal_keys() -> None:
    card = Gpu(
        index=0,
        vendor="nvidia",
        product="NVIDIA A100-SXM4-80GB",
        mig=Mig(mode="enabled", pending="enabled", slices=(MigSlice(profile="1g.10gb+me"),)),
    )
    portrait = Portrait(node="n", gpus=(card,), observations={"gpus": Observation(source="s", at=AT)})
    assert derive_labels(portrait, Spec(), Labelling())["myriad.dev/mig-1g.10gb.me"] == "1"
    assert layout([card]) == "single"


def test_shared_gpus_say_so() -> None:
    labels = derive_labels(machine("l40s-x4"), SPEC, Labelling(sets=("gfd",), replicas=4))
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-L40S-SHARED"
    assert labels["nvidia.com/gpu.replicas"] == "4" and labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.sharing-strategy"] == "time-slicing"


def test_h5_topograph_keys_old_and_new_side_by_side() -> None:
    fabric = Fabric(state="completed", status="success", cluster_uuid="7b968a6d-c8aa-45e1-9e07-e1e51be99c31", clique=1)
    portrait = machine("h100-sxm5-x8").model_copy(update={"fabric": fabric})
    labels = derive_labels(portrait, SPEC, ALL)
    domain = "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1"
    assert labels["accelerator.topograph.run/domain"] == labels["network.topology.nvidia.com/accelerator"] == domain
    assert labels["nvidia.com/gpu.clique"] == labels["myriad.dev/nvlink-domain"] == domain
    assert labels["fabric.topograph.run/tier-0"] == labels["network.topology.nvidia.com/leaf"] == "hall1.b1.r1"
    assert labels["fabric.topograph.run/tier-2"] == labels["network.topology.nvidia.com/core"] == "hall1"
    assert labels["network.topology.nvidia.com/block"] == "hall1.b1.r1"
    assert labels["network.topology.nvidia.com/datacenter"] == "hall1"


def test_only_what_is_configured_is_written() -> None:
    labels = derive_labels(machine("h100-sxm5-x8"), SPEC, Labelling())
    assert {key.partition("/")[0] for key in labels} == {"myriad.dev"}
    cloud = derive_labels(machine("h100-sxm5-x8"), SPEC, Labelling(sets=("cloud",), zone_level=1))
    assert cloud["topology.kubernetes.io/zone"] == "hall1.b1"
    assert derive_labels(machine("h100-sxm5-x8"), Spec(), Labelling(sets=("cloud",))) == {}


def test_long_values_stay_different_and_odd_ones_become_legal() -> None:
    one, other = "x" * 70 + "1", "x" * 70 + "2"
    assert len(label_value(one)) == 63 and label_value(one) != label_value(other)
    assert label_value("Graphics Device (rev ff)") == "Graphics-Device-rev-ff"
    assert label_value("___") == ""


def test_no_name_makes_a_key_that_a_node_may_not_carry() -> None:
    names = ("Board A+B", "Board A/B", "\u9f8d", "x" * 80, "-", "Board \u00fc")
    gpus = tuple(
        Gpu(
            observed="gpus", index=index, vendor="nvidia", product=name,
            mig=Mig(mode="enabled", pending="enabled", slices=(MigSlice(profile=name), MigSlice(profile="1g.10gb+me"))),
        )
        for index, name in enumerate(names)
    )  # fmt: skip
    portrait = Portrait(node="n", observations={"gpus": Observation(source="s", at="t")}, gpus=gpus)
    labels = derive_labels(portrait, Spec(), Labelling(sets=("own", "gfd")))
    for key, value in labels.items():
        prefix, _, name = key.partition("/")
        assert re.fullmatch(r"[a-z0-9.]+", prefix)
        for text in (name, value):
            assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text), key
    assert labels["myriad.dev/gpu-product"] == "mixed"
    assert labels["myriad.dev/gpu-count.Board-A-B"] == "2"
    assert labels["myriad.dev/mig-1g.10gb.me"] == "6"
