"""The stack: one lock of every component, a content-addressed store, and bundles made from it."""
