"""The filter `myriad.gpu.diagnosis`, as a fail_msg calls it."""

from __future__ import annotations

from ansible_collections.myriad.gpu.plugins.filter.diagnosis import diagnosis

REFUSED = "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"


def test_a_text_a_list_and_a_registered_result_are_read() -> None:
    for value in (REFUSED, ["all is well", REFUSED], {"rc": 1, "stdout": "", "stderr": REFUSED}):
        assert "Secure Boot is on" in diagnosis(value)


def test_the_items_of_a_looped_task_are_read() -> None:
    result = {"msg": "One or more items failed", "results": [{"msg": "fine"}, {"stderr": REFUSED, "failed": True}]}
    assert "Secure Boot is on" in diagnosis(result)


def test_the_node_stands_in_the_command() -> None:
    sentence = diagnosis("Failed to initialize NVML: Driver/library version mismatch", "gpu7", where="gpu")
    assert sentence.startswith("the loaded NVIDIA kernel module and the userspace library")
    assert "; next: cat /proc/driver/nvidia/version" in sentence


def test_an_unknown_text_is_answered_with_what_the_caller_says() -> None:
    assert diagnosis("something else") == ""
    assert diagnosis(None, otherwise="as it is") == "as it is"
