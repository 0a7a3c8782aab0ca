"""The NodePortrait: facts with source and time, unchanged content keeps its time, stale ones are not trusted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from myriad.agent.collect.base import at_least
from myriad.fleet.portrait import (
    Driver,
    Ecc,
    Gpu,
    Kernel,
    Observation,
    Portrait,
    facts,
    fresh,
    settle,
)

THEN = "2026-11-29T10:00:00Z"
LATER = "2026-11-29T11:00:00Z"


def portrait(at: str, *, uncorrected: int = 0, driver: str = "580.126.20", boot: str = "b1") -> Portrait:
    look = {
        "kernel": Observation(source="/proc", at=at),
        "gpus": Observation(source="nvidia-smi -q -x", at=at),
        "gpus/0": Observation(source="nvidia-smi -q -x", at=at),
        "gpus/1": Observation(source="nvidia-smi -q -x", at=at),
    }
    gpus = tuple(
        Gpu(
            observed=f"gpus/{index}",
            index=index,
            vendor="nvidia",
            memory_mib=81559,
            ecc=Ecc(enabled=True, uncorrected=uncorrected if index else 0),
        )
        for index in range(2)
    )
    return Portrait(
        node="gpu1",
        boot_id=boot,
        observations=look,
        kernel=Kernel(observed="kernel", release="6.1.0-57-amd64"),
        gpus=gpus,
        drivers=(Driver(observed="gpus", vendor="nvidia", loaded=driver),),
    )


def test_unchanged_content_keeps_its_time_and_is_equal() -> None:
    first = portrait(THEN)
    assert settle(portrait(LATER), first) == first


def test_only_what_changed_gets_the_new_time() -> None:
    settled = settle(portrait(LATER, uncorrected=3), portrait(THEN))
    assert settled != portrait(THEN)
    times = {key: look.at for key, look in settled.observations.items()}
    assert times == {"kernel": THEN, "gpus": THEN, "gpus/0": THEN, "gpus/1": LATER}


def test_another_boot_is_another_portrait() -> None:
    assert settle(portrait(LATER, boot="b2"), portrait(THEN)).observations["kernel"].at == LATER


def test_a_fault_that_comes_or_goes_is_a_change() -> None:
    before = portrait(THEN)
    after = portrait(LATER)
    looks = dict(after.observations) | {"gpus": Observation(source="nvidia-smi -q -x", at=LATER, fault="hangs")}
    settled = settle(after.model_copy(update={"observations": looks}), before)
    assert settled.observations["gpus"].at == LATER and settled.observations["gpus/0"].at == THEN


def test_facts_name_value_source_and_time() -> None:
    found = {fact.path: fact for fact in facts(portrait(THEN))}
    ecc = found["gpus[1].ecc.uncorrected"]
    assert (ecc.value, ecc.source, ecc.at) == (0, "nvidia-smi -q -x", THEN)
    assert found["kernel.release"].source == "/proc"
    assert found["gpus[0].memoryMib"].value == 81559
    assert not any(path.startswith("observations") for path in found)
    assert "gpus[0].numaNode" not in found  # what is not known is no fact


def test_a_document_reads_back_as_the_same_portrait() -> None:
    first = portrait(THEN)
    document = first.document()
    assert document["gpus"][0]["memoryMib"] == 81559 and "numaNode" not in document["gpus"][0]
    assert Portrait.model_validate(document) == first


def test_running_counters_change_rarely() -> None:
    assert [at_least(n) for n in (0, 1, 2, 3, 4, 1000, 1025)] == [0, 1, 2, 2, 4, 512, 1024]
    assert len({at_least(n) for n in range(100_000)}) == 18


def test_a_stale_portrait_is_not_trusted() -> None:
    now = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)

    def lease(age_s: int) -> dict[str, object]:
        renewed = (now - timedelta(seconds=age_s)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return {"spec": {"renewTime": renewed, "leaseDurationSeconds": 40}}

    status = portrait(THEN).document()
    assert fresh(status, lease(119), now) == ""
    assert "121 s" in fresh(status, lease(121), now)
    assert "no agent" in fresh(status, None, now)
    assert "no portrait" in fresh(None, lease(1), now)
    assert "never renewed" in fresh(status, {"spec": {}}, now)
