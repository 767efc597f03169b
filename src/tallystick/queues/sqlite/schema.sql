-- Queue, schema version 1 (docs/spec/queue.md). The text of these statements is part of the format:
-- its fingerprint is compared at every opening.

-- One row for each job, for ever: a run that was submitted once is known.
CREATE TABLE jobs (
    seq            INTEGER PRIMARY KEY,
    job_id         BLOB    NOT NULL UNIQUE CHECK (length(job_id) = 32),
    run_id         TEXT    NOT NULL UNIQUE CHECK (length(run_id) = 36),
    model_digest   BLOB    NOT NULL CHECK (length(model_digest) = 32),
    state          TEXT    NOT NULL
        CHECK (state IN ('pending', 'leased', 'done', 'failed', 'dead', 'cancelled')),
    priority       INTEGER NOT NULL CHECK (priority BETWEEN -100 AND 100),
    max_attempts   INTEGER NOT NULL CHECK (max_attempts BETWEEN 1 AND 100),
    attempts       INTEGER NOT NULL CHECK (attempts BETWEEN 0 AND max_attempts),
    lease_epoch    INTEGER NOT NULL CHECK (lease_epoch >= 0),
    worker_id      TEXT    CHECK ((worker_id IS NULL) = (state <> 'leased')),
    -- When it may be claimed, by the time since the boot of that id; the end of a lease.
    due_boot       TEXT    CHECK ((due_boot IS NULL) = (due_ms IS NULL)),
    due_ms         INTEGER CHECK ((due_ms IS NULL) = (state NOT IN ('pending', 'leased'))),
    -- By the wall clock, for people.
    submitted_ms   INTEGER NOT NULL,
    changed_ms     INTEGER NOT NULL,
    receipt_digest BLOB    CHECK ((receipt_digest IS NULL) = (state <> 'done')),
    status         TEXT    CHECK ((status IS NULL) = (state <> 'done')),
    place          TEXT,
    reason         TEXT
) STRICT;

CREATE INDEX jobs_by_turn ON jobs (priority DESC, seq) WHERE due_ms IS NOT NULL;

-- What a job shall execute: private, and gone when the job is done or cancelled.
CREATE TABLE runs (
    seq INTEGER PRIMARY KEY REFERENCES jobs (seq),
    run BLOB    NOT NULL
) STRICT;

-- One row for each lease.
CREATE TABLE leases (
    seq         INTEGER NOT NULL REFERENCES jobs (seq),
    lease_epoch INTEGER NOT NULL CHECK (lease_epoch >= 1),
    worker_id   TEXT    NOT NULL,
    claimed_ms  INTEGER NOT NULL,
    ended_ms    INTEGER,
    ended       TEXT
        CHECK (ended IN ('completed', 'failed', 'released', 'expired', 'cancelled')),
    reason      TEXT,
    PRIMARY KEY (seq, lease_epoch),
    CHECK ((ended IS NULL) = (ended_ms IS NULL))
) STRICT, WITHOUT ROWID;

-- Whichever program updates rows here: epochs never go back, and what is done stays as it is.
CREATE TRIGGER jobs_go_forward BEFORE UPDATE ON jobs
WHEN NEW.lease_epoch < OLD.lease_epoch OR OLD.state IN ('done', 'cancelled')
BEGIN
    SELECT RAISE(ABORT, 'a job went back');
END;

CREATE TRIGGER jobs_stay BEFORE DELETE ON jobs
BEGIN
    SELECT RAISE(ABORT, 'a job was deleted');
END;
