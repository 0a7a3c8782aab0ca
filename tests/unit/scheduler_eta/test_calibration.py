"""Estimates judged, and the next ones corrected by it."""

from __future__ import annotations

import numpy as np
import pytest

from myriad.scheduler.eta.calibration import LEAST, TOLD, Calibration, Judged
from myriad.scheduler.eta.model import Eta


def judged(actual: float, *, low: float = 3000.0, mid: float = 6000.0, high: float | None = 9000.0) -> Judged:
    return Judged(0.0, low, mid, high, low, mid, high, actual)


def test_nothing_is_told_before_enough_were_judged() -> None:
    calibration = Calibration(judged(6000.0) for _ in range(TOLD - 1))
    told = calibration.correct(Eta(3000.0, 6000.0, 9000.0, "b"))
    assert told.held is None and told.judged == TOLD - 1
    calibration.add(judged(60_000.0))
    told = calibration.correct(Eta(3000.0, 6000.0, 9000.0, "b"))
    assert told.held == pytest.approx((TOLD - 1) / TOLD)


def test_a_biased_model_is_moved_and_a_narrow_one_widened() -> None:
    rng = np.random.default_rng(0)
    actual = 12_000.0 * np.exp(rng.normal(0, 0.8, 4 * LEAST))
    calibration = Calibration(judged(float(a)) for a in actual)
    told = calibration.correct(Eta(3000.0, 6000.0, 9000.0, "b"))
    assert told.mid_s == pytest.approx(12_000.0, rel=0.2)
    fresh = 12_000.0 * np.exp(rng.normal(0, 0.8, 2000))
    assert told.low_s is not None and told.high_s is not None
    assert 0.72 < np.mean((fresh >= told.low_s) & (fresh <= told.high_s)) < 0.88


def test_without_errors_to_learn_from_the_estimate_stays() -> None:
    told = Calibration().correct(Eta(3000.0, 6000.0, 9000.0, "b"))
    assert (told.low_s, told.mid_s, told.high_s) == pytest.approx((3000.0, 6000.0, 9000.0))


def test_open_ends_stay_open() -> None:
    calibration = Calibration(judged(6000.0, high=None) for _ in range(2 * LEAST))
    assert calibration.correct(Eta(3000.0, 6000.0, None, "b")).high_s is None
    assert calibration.correct(Eta(3000.0, None, None, "b")).mid_s is None


def test_an_estimate_beyond_the_horizon_holds_only_for_what_never_came() -> None:
    assert judged(9000.0).held and judged(8999.7, high=8999.2).held and not judged(9001.4).held
    beyond = Judged(0.0, None, None, None, None, None, None, 60.0)
    assert not beyond.held


def test_what_is_older_than_the_window_is_forgotten() -> None:
    calibration = Calibration(judged(60.0) for _ in range(50))
    calibration.forget_before(1.0)
    assert calibration.held_of_all() == (None, 0)
