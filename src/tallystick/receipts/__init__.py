"""Receipts: built after a run, verified without it, shown to people."""
