"""Multi-node bandwidth before a rack is opened: what is measured, what it means, and the jobs that measure it."""
