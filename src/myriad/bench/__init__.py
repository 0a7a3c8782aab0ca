"""Benchmarks that need a machine's engine; their figures are ratios within one run, never promises."""
