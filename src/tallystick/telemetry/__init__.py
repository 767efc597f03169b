"""Events of a run: what happened when, with how much memory (docs/spec/telemetry.md)."""
