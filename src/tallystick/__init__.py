"""Tallystick: LLM inference with a signed receipt that anyone can re-execute bit for bit."""
