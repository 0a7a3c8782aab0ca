"""Drawn jobs: shares as asked, the single large gang, limits, and the trace's distribution."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from myriad.errors import InputError
from myriad.sim import Distribution, JobMix, draw_jobs


def test_shares_of_gangs_are_as_asked() -> None:
    jobs = draw_jobs(JobMix(count=4000, teams={"a": 1, "b": 3}), seed=2)
    assert sum(j.pods >= 2 for j in jobs) / 4000 == pytest.approx(0.30, abs=0.03)
    assert sum(j.pods >= 16 for j in jobs) / 4000 == pytest.approx(0.05, abs=0.015)
    assert [j.pods for j in jobs if j.pods == 128] == [128]
    assert sum(j.team == "b" for j in jobs) / 4000 == pytest.approx(0.75, abs=0.03)
    assert all(j.limit_s and j.limit_s >= j.run_s and j.limit_s % 60 == 0 for j in jobs)
    assert jobs == sorted(jobs, key=lambda j: j.submit_s)
    assert jobs == draw_jobs(JobMix(count=4000, teams={"a": 1, "b": 3}), seed=2)


def test_lifetimes_follow_the_quantiles() -> None:
    distribution = Distribution()
    assert distribution.lifetime_s(0.5) == pytest.approx(655)
    assert distribution.lifetime_s(0.999) == pytest.approx(136_474)
    assert 655 < distribution.lifetime_s(0.52) < 845


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pods.csv"
    file.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"pods.csv is no pods.csv of the trace: 'num_gpu'"):
        Distribution.read(file)


@pytest.mark.skipif("MYRIAD_OPENB" not in os.environ, reason="MYRIAD_OPENB names the folder of the trace (openb-2023)")
def test_the_built_in_quantiles_are_those_of_the_trace() -> None:
    real = Distribution.read(Path(os.environ["MYRIAD_OPENB"]) / "pods.csv")
    own = Distribution()
    for share in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95):
        assert own.lifetime_s(share) == pytest.approx(real.lifetime_s(share), rel=0.05)
    assert own.gpus == real.gpus
