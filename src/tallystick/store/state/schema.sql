-- State store, schema version 4 (docs/spec/state-store.md). The text of these statements is part of
-- the format: its fingerprint is compared at every opening.

-- One row for each job of which a receipt was accepted.
CREATE TABLE jobs (
    network_id         BLOB    NOT NULL CHECK (length(network_id) = 32),
    job_nullifier      BLOB    NOT NULL CHECK (length(job_nullifier) = 32),
    request_commitment BLOB    NOT NULL CHECK (length(request_commitment) = 32),
    job_class          INTEGER NOT NULL CHECK (job_class BETWEEN 0 AND 3),
    slots              INTEGER NOT NULL
        CHECK (slots = CASE WHEN job_class IN (1, 2) THEN 2 ELSE 1 END),
    PRIMARY KEY (network_id, job_nullifier)
) STRICT, WITHOUT ROWID;

-- One row for each accepted receipt, with the whole signed receipt.
CREATE TABLE receipts (
    receipt_id          BLOB    NOT NULL PRIMARY KEY CHECK (length(receipt_id) = 32),
    network_id          BLOB    NOT NULL,
    job_nullifier       BLOB    NOT NULL,
    replica_slot        INTEGER NOT NULL CHECK (replica_slot BETWEEN 0 AND 1),
    execution_nullifier BLOB    NOT NULL UNIQUE CHECK (length(execution_nullifier) = 32),
    signed_receipt      BLOB    NOT NULL CHECK (length(signed_receipt) = 670),
    bundle_id           BLOB    NOT NULL CHECK (length(bundle_id) = 32),
    timestamp_ms        INTEGER NOT NULL CHECK (timestamp_ms >= 0),
    issued_epoch        INTEGER NOT NULL CHECK (issued_epoch >= 0),
    expires_epoch       INTEGER NOT NULL CHECK (expires_epoch >= issued_epoch),
    verification_epoch  INTEGER NOT NULL
        CHECK (verification_epoch BETWEEN issued_epoch AND expires_epoch),
    UNIQUE (network_id, job_nullifier, replica_slot),
    FOREIGN KEY (network_id, job_nullifier) REFERENCES jobs (network_id, job_nullifier)
        ON DELETE RESTRICT ON UPDATE RESTRICT
) STRICT;
