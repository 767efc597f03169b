"""The embedded queue: one SQLite file for all processes of a machine (docs/spec/queue.md)."""
