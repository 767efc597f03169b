"""From what an observer saw to evidence (docs/spec/evidence.md#adapter)."""
