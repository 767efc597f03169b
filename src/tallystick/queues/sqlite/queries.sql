-- The statements that read and write the rows of the queue. Each follows a line with its name.

-- name: find
SELECT * FROM jobs WHERE job_id = :job_id;

-- name: find_run
SELECT * FROM jobs WHERE run_id = :run_id;

-- name: find_prefix
SELECT * FROM jobs WHERE job_id BETWEEN :first AND :last LIMIT 2;

-- name: first_due
SELECT * FROM jobs
WHERE due_ms IS NOT NULL AND (due_boot <> :boot OR due_ms <= :now)
    AND hex(model_digest) NOT IN (SELECT value FROM json_each(:without))
ORDER BY priority DESC, seq
LIMIT 1;

-- name: first_waiting
SELECT 1 FROM jobs
WHERE due_ms IS NOT NULL AND state = 'pending'
    AND hex(model_digest) NOT IN (SELECT value FROM json_each(:without))
LIMIT 1;

-- name: add
INSERT INTO jobs (
    job_id, run_id, model_digest, state, priority, max_attempts, attempts, lease_epoch, worker_id,
    due_boot, due_ms, submitted_ms, changed_ms, receipt_digest, status, place, reason
) VALUES (
    :job_id, :run_id, :model_digest, :state, :priority, :max_attempts, :attempts, :lease_epoch,
    :worker_id, :due_boot, :due_ms, :submitted_ms, :changed_ms, :receipt_digest, :status, :place,
    :reason
);

-- name: add_run
INSERT INTO runs (seq, run) VALUES (:seq, :run);

-- name: replace
UPDATE jobs
SET state = :state, attempts = :attempts, lease_epoch = :lease_epoch, worker_id = :worker_id,
    due_boot = :due_boot, due_ms = :due_ms, changed_ms = :changed_ms,
    receipt_digest = :receipt_digest, status = :status, place = :place, reason = :reason
WHERE seq = :seq AND state = :held_state AND lease_epoch = :held_epoch;

-- name: run_of
SELECT run FROM runs WHERE seq = :seq;

-- name: forget_run
DELETE FROM runs WHERE seq = :seq;

-- name: begin_lease
INSERT INTO leases (seq, lease_epoch, worker_id, claimed_ms)
VALUES (:seq, :lease_epoch, :worker_id, :claimed_ms);

-- name: end_lease
UPDATE leases SET ended_ms = :ended_ms, ended = :ended, reason = :reason
WHERE seq = :seq AND lease_epoch = :lease_epoch AND ended IS NULL;

-- name: leases
SELECT lease_epoch, worker_id, claimed_ms, ended_ms, ended, reason FROM leases
WHERE seq = :seq
ORDER BY lease_epoch;

-- name: newest
SELECT * FROM jobs
WHERE state IN (SELECT value FROM json_each(:states))
ORDER BY seq DESC
LIMIT :limit;

-- name: count
SELECT count(*) FROM jobs WHERE state = :state;
