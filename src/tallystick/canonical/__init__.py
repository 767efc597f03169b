"""Byte-level ground rules: strict JSON in, JCS out, framed hashes, Merkle trees. No IO."""
