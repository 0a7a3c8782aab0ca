"""Collectors, one for each kind of source, all behind `base.Collector`; `assemble` makes one portrait of them."""
