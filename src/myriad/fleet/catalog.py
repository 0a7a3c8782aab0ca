"""GPU models that Myriad knows, by the name that a description uses.

Names follow `<chip>-<form>-<memory>` of the vendors' data sheets. A description may only use a name of this table:
everything downstream (labels, image verdicts, placement, driver plan) compares it with what is measured. The rows stand
in `gpu_rows.py`; what follows from a PCI bus in `hardware.py`.
"""

from __future__ import annotations

from myriad.fleet.gpu_rows import MODELS
from myriad.fleet.gpu_types import FormFactor, GpuModel, MigProfile, NvLink, PciId, Vendor
from myriad.fleet.names import closest, listing

__all__ = ["CATALOG", "FormFactor", "GpuModel", "MigProfile", "NvLink", "PciId", "Vendor", "model_fault"]

CATALOG: dict[str, GpuModel] = {model.name: model for model in MODELS}
"""Every known model by its name."""


def model_fault(name: str) -> str | None:
    """Why `name` is not a GPU model of the catalog, with the nearest names; None when it is."""
    if name in CATALOG:
        return None
    wanted = name.lower().replace("-", "").replace("_", "").replace(" ", "")
    plain = {known.lower().replace("-", ""): known for known in CATALOG}
    begins = [known for text, known in plain.items() if wanted and text.startswith(wanted)]
    if wanted in plain:
        begins = [plain[wanted]]
    if len(begins) > 1:
        return f'"{name}" is not a GPU model; is it {", ".join(begins[:-1])} or {begins[-1]}?'
    best = begins[0] if begins else closest(name, CATALOG)
    if best is not None:
        return f'"{name}" is not a known GPU model; did you mean "{best}"?'
    return f'"{name}" is not a known GPU model; known: {listing(CATALOG, limit=60)}'
