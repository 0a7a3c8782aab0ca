"""From what a program said to what it means: cause, next command, and where that is known from. Pure.

`catalogue.yml` holds the symptoms; `diagnose` finds the one that a text shows. Roles (through the filter
`myriad.gpu.diagnosis`), the GPU gate and `myriad why` all answer from it, so a symptom has one explanation everywhere.
"""

from __future__ import annotations

from myriad.symptoms.catalogue import Catalogue, Diagnosis, Symptom, catalogue, diagnose, diagnose_all

__all__ = ["Catalogue", "Diagnosis", "Symptom", "catalogue", "diagnose", "diagnose_all"]
