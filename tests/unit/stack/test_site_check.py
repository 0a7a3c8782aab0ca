"""What site.yml asks of a bundle before it touches a host, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.myriad.gpu.plugins.filter.stack import bundle_problems

from tests.unit.stack.offline_bundle import make_bundle


def test_a_whole_bundle_and_one_that_lacks_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    bundle = make_bundle(tmp_path)
    assert bundle_problems(str(bundle.directory)) == []
    bundle.file_path("tool").unlink()
    sentence, action = bundle_problems(str(bundle.directory))
    assert sentence.startswith("missing    tool (toolbox 1.2)  sha256/") and sentence.endswith("it is not there")
    assert action.startswith("-> copy the bundle again")


def test_no_bundle_at_all_is_a_sentence_too(tmp_path: Path) -> None:
    (sentence,) = bundle_problems(str(tmp_path))
    assert "is no bundle: bundle.yml is missing" in sentence
