"""What a machine without a card may lack, and what it may not."""

from __future__ import annotations

import pytest

from myriad.nodeimage.proof import waits_for_a_card

CARD = "Failed to insert module 'nvidia_current': No such device"
OTHER = "Failed to find module 'br_netfilter'"


@pytest.mark.parametrize(
    ("said", "loads"),
    [([CARD], True), (["Inserted module 'tun'", CARD], True), ([CARD, OTHER], False), ([OTHER], False), ([], False)],
)
def test_only_the_absent_card_excuses_a_module(said: list[str], loads: bool) -> None:
    found = waits_for_a_card(said)
    assert "nvidia-persistenced.service" in found
    assert ("systemd-modules-load.service" in found) == loads
