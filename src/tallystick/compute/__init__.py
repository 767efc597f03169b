"""Canonical operations, compute-unit rules, architecture descriptions, semantic schedules."""
