"""The state store: which receipts were accepted, one SQLite file (docs/spec/state-store.md)."""
