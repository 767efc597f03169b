"""The one adapter: the C API of llama.cpp as the pinned ``xllamacpp`` wheel exports it."""
