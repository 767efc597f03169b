"""The statements that read and write the rows of the state store."""

from __future__ import annotations

from typing import Final

BEGIN: Final = "BEGIN IMMEDIATE"
COMMIT: Final = "COMMIT"
ROLLBACK: Final = "ROLLBACK"
CHECKPOINT: Final = "PRAGMA wal_checkpoint(TRUNCATE)"

SETTINGS: Final = (
    "PRAGMA foreign_keys = ON",
    "PRAGMA synchronous = FULL",
    "PRAGMA fullfsync = ON",
    "PRAGMA trusted_schema = OFF",
    "PRAGMA cell_size_check = ON",
)

FIND_RECEIPT: Final = "SELECT 1 FROM receipts WHERE receipt_id = :receipt_id"

FIND_EXECUTION: Final = "SELECT 1 FROM receipts WHERE execution_nullifier = :execution_nullifier"

FIND_JOB: Final = """
SELECT request_commitment, job_class FROM jobs
WHERE network_id = :network_id AND job_nullifier = :job_nullifier
"""

FIND_SLOT: Final = """
SELECT 1 FROM receipts
WHERE network_id = :network_id AND job_nullifier = :job_nullifier AND replica_slot = :replica_slot
"""

INSERT_JOB: Final = """
INSERT INTO jobs (network_id, job_nullifier, request_commitment, job_class, slots)
VALUES (:network_id, :job_nullifier, :request_commitment, :job_class, :slots)
"""

INSERT_RECEIPT: Final = """
INSERT INTO receipts (
    receipt_id, network_id, job_nullifier, replica_slot, execution_nullifier, signed_receipt,
    bundle_id, timestamp_ms, issued_epoch, expires_epoch, verification_epoch
) VALUES (
    :receipt_id, :network_id, :job_nullifier, :replica_slot, :execution_nullifier, :signed_receipt,
    :bundle_id, :timestamp_ms, :issued_epoch, :expires_epoch, :verification_epoch
)
"""

# In the order of StateEntry's fields.
RESTORE: Final = """
SELECT
    receipts.receipt_id, receipts.network_id, receipts.job_nullifier, execution_nullifier,
    request_commitment, bundle_id, job_class, replica_slot, signed_receipt, timestamp_ms,
    issued_epoch, expires_epoch, verification_epoch
FROM receipts JOIN jobs USING (network_id, job_nullifier)
WHERE receipt_id = ?
"""
