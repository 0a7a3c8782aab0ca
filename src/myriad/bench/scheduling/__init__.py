"""What `make bench-scheduling` submits, sees and judges by; the run itself is tests/scale/bench_scheduling.py."""
