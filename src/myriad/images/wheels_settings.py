"""Where a build fetches wheels from."""

from __future__ import annotations

from myriad.images.context import BuildContext
from myriad.stack.settings import Settings, read_mirrors


def wheel_settings(ctx: BuildContext) -> Settings:
    """Mirrors and proxies of this machine, with the build's own folder for what is half downloaded."""
    return Settings(cache=ctx.cache_dir, mirrors=read_mirrors())
