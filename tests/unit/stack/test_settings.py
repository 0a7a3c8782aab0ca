"""Mirrors and proxies: one place, read from a file and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.stack.settings import Mirrors, cache_root, read_mirrors


def test_nothing_set_means_the_origins_themselves(tmp_path: Path) -> None:
    mirrors = read_mirrors({"HOME": str(tmp_path)})
    assert mirrors == Mirrors()
    assert mirrors.release_url("https://dl.k8s.io/release/x") == "https://dl.k8s.io/release/x"
    assert mirrors.apt_url("pool/x.deb") == "http://deb.debian.org/debian/pool/x.deb"
    assert mirrors.proxy_environment() == {} and mirrors.go_environment() == {}


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mirrors.yml"
    path.write_text("go: https://go.file\napt: https://apt.file\nreleases: {github.com: https://gh.file}\n")
    mirrors = read_mirrors(
        {
            "MYRIAD_MIRRORS_FILE": str(path),
            "MYRIAD_MIRROR_GO": "https://go.env,direct",
            "MYRIAD_MIRROR_REGISTRIES": "docker.io=http://hub.env, *=http://all.env/r",
        }
    )
    assert mirrors.go_environment() == {"GOPROXY": "https://go.env,direct"}
    assert mirrors.apt_url("pool/x.deb") == "https://apt.file/pool/x.deb"
    assert mirrors.release_url("https://github.com/a/b?c=1") == "https://gh.file/a/b?c=1"
    assert mirrors.registry_url("docker.io") == "http://hub.env"
    assert mirrors.registry_url("quay.io") == "http://all.env/r/quay.io"


def test_the_file_is_looked_for_in_the_config_folder(tmp_path: Path) -> None:
    (tmp_path / "myriad").mkdir()
    (tmp_path / "myriad" / "mirrors.yml").write_text("python: https://pypi.site/simple\n")
    mirrors = read_mirrors({"XDG_CONFIG_HOME": str(tmp_path)})
    assert mirrors.python_environment()["UV_DEFAULT_INDEX"] == "https://pypi.site/simple"


def test_proxies_come_in_both_spellings_down_to_children() -> None:
    mirrors = read_mirrors({"HOME": "/nonexistent", "https_proxy": "http://proxy:3128", "NO_PROXY": "10.0.0.0/8"})
    assert mirrors.proxy_environment() == {
        "HTTPS_PROXY": "http://proxy:3128",
        "https_proxy": "http://proxy:3128",
        "NO_PROXY": "10.0.0.0/8",
        "no_proxy": "10.0.0.0/8",
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("pyhton: https://x\n", "wrong mirror settings: pyhton"),
        ("- a\n", "must be a mapping"),
        ("a: b: c\n", "is not YAML"),
        ("releases: nothing\n", "wrong mirror settings: releases"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_allowed(content: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "mirrors.yml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        read_mirrors({"MYRIAD_MIRRORS_FILE": str(path)})
    assert words in str(caught.value) and str(path) in str(caught.value)


def test_a_named_file_that_is_missing_is_told() -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_mirrors({"MYRIAD_MIRRORS_FILE": "/nonexistent/mirrors.yml"})


def test_a_pair_without_a_url_is_told() -> None:
    with pytest.raises(InputError, match=r"'docker\.io' is not host=url"):
        read_mirrors({"HOME": "/nonexistent", "MYRIAD_MIRROR_REGISTRIES": "docker.io"})


def test_the_cache_follows_xdg() -> None:
    assert cache_root({"XDG_CACHE_HOME": "/c"}) == Path("/c/myriad")
    assert cache_root({"HOME": "/home/u"}) == Path("/home/u/.cache/myriad")
