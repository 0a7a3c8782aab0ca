"""Names that Kubernetes accepts, and what a person probably meant."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from myriad.fleet import names
from myriad.fleet.catalog import CATALOG, model_fault


@pytest.mark.parametrize("name", ["a", "vision", "h100-80", "9lives", "v" * 63])
def test_good_names(name: str) -> None:
    assert names.dns_label_fault(name) is None


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Vision_A", 'for example "vision-a"'),
        ("-a", 'for example "a"'),
        ("a.b", 'for example "a-b"'),
        ("v" * 64, "has 64 characters; Kubernetes allows 63"),
        (8, "8 is not a name"),
        (None, "empty is not a name"),
        ("", '"" is not a Kubernetes name'),
    ],
)
def test_bad_names_are_told_with_a_good_one(name: object, sentence: str) -> None:
    assert sentence in str(names.dns_label_fault(name))


def test_node_names_may_have_dots_and_no_underscores() -> None:
    assert names.host_name_fault("gpu1.site.example") is None
    assert "not a valid node name" in str(names.host_name_fault("gpu_1"))
    assert "has 70 characters" in str(names.host_name_fault("g" * 70))


def test_zero_padded_twins_have_one_key() -> None:
    assert names.zero_padding_key("gpu0633") == names.zero_padding_key("gpu633") == "gpu633"
    assert names.zero_padding_key("r01-n002") == "r1-n2"
    assert names.zero_padding_key("gpu1") != names.zero_padding_key("gpu10")


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("reserach", ["research", "product"], "research"),
        ("controlplane", ["control_plane", "gpu_nodes"], "control_plane"),
        ("Research", ["research"], "research"),
        ("h10", ["h100", "h200"], "h100"),
        ("h200", ["h100"], None),
        ("quokka", ["research", "product"], None),
        ("anything", [], None),
    ],
)
def test_what_was_meant(word: str, known: list[str], meant: str | None) -> None:
    assert names.closest(word, known) == meant


def test_without_a_guess_the_known_names_are_told() -> None:
    assert names.did_you_mean("quokka", ["b", "a"]) == "; known: a, b"
    assert names.did_you_mean("quokka", []) == "; none is described"
    assert names.listing([str(number) for number in range(10)], limit=3) == "0, 1, 2 and 7 more"


def test_gpu_models_of_the_catalog_are_label_values() -> None:
    for name, model in CATALOG.items():
        assert model.name == name
        assert names.label_name_fault(name) is None
        assert names.extended_resource_fault(model.resource) is None
        assert model.memory_gib > 0
        assert model.source


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("H100-SXM5-80G", 'did you mean "H100-SXM5-80GB"?'),
        ("h200", 'did you mean "H200"?'),
        ("A100", "is it A100-SXM4-80GB, A100-SXM4-40GB, A100-PCIe-80GB or A100-PCIe-40GB?"),
        ("Ascend910", 'did you mean "Ascend910B"?'),
        ("Voodoo2", "known: B300, B200"),
    ],
)
def test_unknown_gpu_models_are_told_with_the_nearest(given: str, sentence: str) -> None:
    assert sentence in str(model_fault(given))


@pytest.mark.parametrize(
    "fault", [names.dns_label_fault, names.host_name_fault, names.place_fault, names.label_name_fault]
)
def test_a_line_that_ends_in_a_name_is_none(fault: Callable[[str], str | None]) -> None:
    """`|` in YAML keeps the end of the line, which `$` of a pattern lets pass and Kubernetes does not."""
    assert fault("gpu1") is None
    assert fault("gpu1\n") is not None


def test_a_line_that_ends_in_a_resource_is_none() -> None:
    assert names.extended_resource_fault("nvidia.com/gpu") is None
    assert names.extended_resource_fault("nvidia.com/gpu\n") is not None
