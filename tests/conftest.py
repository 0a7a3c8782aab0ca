"""What holds for every test: no time limit for one example, because a busy machine is not a fault of the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("myriad", deadline=None)
settings.load_profile("myriad")
