"""Dataset bundles: made, checked, frozen for a run, turned into runs (docs/spec/bundles.md)."""
