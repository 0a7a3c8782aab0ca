"""Which versions go together."""

from __future__ import annotations

import pytest

from myriad.stack.compat import Rule, Rules, check, compare, parse_version, satisfies
from myriad.stack.lock import load_lock, load_rules


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("1.35.4", (1, 35, 4)),
        ("v1.35.4", (1, 35, 4)),
        ("1.1.5+ds1-1+deb12u1", (1, 1, 5)),
        ("3.6.6-0", (3, 6, 6)),
        ("580.126.20", (580, 126, 20)),
    ],
)
def test_versions_are_their_leading_numbers(text: str, version: tuple[int, ...]) -> None:
    assert parse_version(text) == version


def test_a_version_without_numbers_is_refused() -> None:
    with pytest.raises(ValueError, match="'latest' does not begin with a version number"):
        parse_version("latest")


def test_missing_parts_count_as_zero() -> None:
    assert compare((1, 35), (1, 35, 0)) == 0
    assert compare((1, 35), (1, 35, 1)) == -1
    assert compare((580, 95, 5), (580, 9)) == 1


@pytest.mark.parametrize(
    ("version", "text", "inside"),
    [
        ("1.35.4", ">=1.35,<1.36", True),
        ("1.36.0", ">=1.35,<1.36", False),
        ("1.34.9", ">=1.35,<1.36", False),
        ("13.0.2", "==13.0.2", True),
        ("13.0.2", ">13.0.2", False),
        ("13.0.2", "<=13.0.2", True),
    ],
)
def test_ranges(version: str, text: str, inside: bool) -> None:
    assert satisfies(parse_version(version), text) is inside


def test_the_lock_that_comes_with_myriad_goes_together() -> None:
    assert [str(finding) for finding in check(load_lock().program_versions(), load_rules())] == []


def test_every_rule_names_its_source() -> None:
    assert all(rule.source.startswith("https://") for rule in load_rules())


def test_every_rule_is_about_something_in_the_lock() -> None:
    known = load_lock().program_versions()
    assert [rule.id for rule in load_rules() if rule.a not in known or rule.b not in known] == []


@pytest.mark.parametrize(
    ("versions", "rule", "nearest"),
    [
        ({"kubernetes": "1.36.1", "volcano": "1.15.1"}, "kubernetes-for-volcano", ("kubernetes before 1.36",)),
        (
            {"kubernetes": "1.35.4", "containerd": "2.1.1"},
            "containerd-for-kubernetes",
            ("containerd 2.1.5", "containerd before 2", "kubernetes before 1.34"),
        ),
        ({"kube-apiserver": "1.35.4", "kubelet": "1.36.0"}, "kubelet-skew", ("kubelet 1.32 to 1.35",)),
        ({"kube-apiserver": "1.35.4", "kubelet": "1.31.9"}, "kubelet-skew", ("kubelet 1.32 to 1.35",)),
        ({"kubeadm": "1.34.4", "kubelet": "1.35.4"}, "kubeadm-kubelet-skew", ("kubelet 1.31 to 1.34",)),
        (
            {"cuda": "13.0.2", "nvidia-driver": "535.309.01"},
            "driver-for-cuda",
            ("nvidia-driver 580.65.06", "cuda before 13"),
        ),
        (
            {"pytorch": "2.12.1", "cuda": "12.8.0"},
            "cuda-for-pytorch",
            ("cuda 13.0", "cuda before 12.7", "pytorch before 2.12"),
        ),
        ({"kubernetes": "1.35.4", "etcd": "3.5.1"}, "etcd-for-kubernetes", ("etcd 3.5.24",)),
        ({"kueue": "0.17.0", "kubernetes": "1.28.1"}, "kubernetes-for-kueue", ("kubernetes 1.29",)),
    ],
)
def test_a_violated_rule_names_both_components_its_source_and_what_would_do(
    versions: dict[str, str], rule: str, nearest: tuple[str, ...]
) -> None:
    findings = check(versions, load_rules())
    assert [(finding.level, finding.rule) for finding in findings] == [("error", rule)]
    assert findings[0].nearest == nearest
    text = str(findings[0])
    for name, version in versions.items():
        assert f"{name} {version}" in text
    assert "https://" in text and "do not go together" in text


def test_outside_what_was_tested_is_a_warning() -> None:
    (finding,) = check({"cuda": "13.0.2", "nvidia-driver": "580.82.07"}, load_rules())
    assert finding.level == "warning"
    assert finding.nearest == ("nvidia-driver 580.95.05",)


def test_a_version_that_the_table_does_not_know_is_a_warning() -> None:
    (finding,) = check({"kueue": "0.20.0", "kubernetes": "1.35.4"}, load_rules())
    assert finding.level == "warning"
    assert "the table has no row for kueue 0.20.0" in finding.text


def test_errors_come_first() -> None:
    versions = {"kueue": "0.20.0", "kubernetes": "1.36.1", "volcano": "1.15.1"}
    assert [finding.level for finding in check(versions, load_rules())] == ["error", "warning"]


def test_a_rule_has_rows_or_a_skew_and_not_both() -> None:
    with pytest.raises(ValueError, match="needs either rows or skew"):
        Rule(id="x", a="a", b="b", source="https://example.org")


def test_a_range_that_cannot_be_read_is_refused() -> None:
    row = {"when": "about 1.35", "allow": [">=1"]}
    with pytest.raises(ValueError, match="is no version range"):
        Rules.model_validate({"rules": [{"id": "x", "a": "a", "b": "b", "source": "s", "rows": [row]}]})
