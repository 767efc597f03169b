"""Events of a run: what happened when, and how much memory was resident (docs/spec/telemetry.md)."""
