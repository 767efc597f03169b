"""A receipt for people: what it says, and both halves of what that means. Nothing is judged."""

from __future__ import annotations

from dataclasses import dataclass

from tallystick.contracts import digests
from tallystick.contracts.codec import decode_bytes
from tallystick.contracts.layout import RECEIPT
from tallystick.contracts.receipt import Receipt
from tallystick.receipts.halves import does_not_prove, proves


@dataclass(frozen=True, slots=True)
class ReceiptSummary:
    """One receipt, its digests, and what it proves and does not prove once it is verified."""

    receipt: Receipt
    receipt_id: str
    receipt_digest: str
    core_digest: str
    chain_digest: str
    proves: tuple[str, ...]
    does_not_prove: tuple[str, ...]

    def rows(self) -> tuple[tuple[str, str], ...]:
        """Return the facts worth a line each, as name and value."""
        core, observed = self.receipt.core, self.receipt.observed
        evidence, runtime = core.evidence, core.runtime_class
        knobs = " ".join(f"{knob.name}={knob.value}" for knob in runtime.knobs)
        return (
            ("receipt", self.receipt_digest),
            ("core", self.core_digest),
            ("model", core.model_digest),
            ("engine", f"{core.engine.name} {core.engine.version}, {core.engine.library}"),
            ("policy", f"{runtime.policy}, rows {_rows(self.receipt)}{knobs and ', ' + knobs}"),
            ("runtime class", core.runtime_class_id),
            ("numeric fingerprint", runtime.fingerprint),
            ("tokens", f"{core.prompt_tokens} prompt, {core.sampled_tokens} sampled"),
            ("stopped by", core.stop_reason.replace("_", " ")),
            ("prompt", f"committed as {core.prompt_commitment}"),
            ("output", f"committed as {core.output_commitment}"),
            ("disclosure", _disclosure(self.receipt)),
            ("compute units", f"{core.canonical_compute_units} (ruleset v3)"),
            ("evidence", _evidence_words(self.receipt)),
            ("state root", evidence.state_root or "none"),
            ("worker's state root", observed.worker_state_root or "none"),
            ("expert routes", evidence.expert_route_root or "none"),
            ("GEMM trace", evidence.gemm_trace_root or "none"),
            ("compute receipt file", observed.compute_receipt_digest),
            ("sandbox", f"{core.sandbox.profile}, enforced: {observed.enforcement_level}"),
            ("egress probes", observed.egress_audit.result.replace("_", " ")),
            ("run", f"{observed.run_id}, {observed.start_time} to {observed.end_time}"),
            ("self-check", observed.self_check.replace("_", " ")),
            ("memory", _memory_words(self.receipt)),
            ("telemetry", f"{observed.telemetry_digest}, {observed.dropped_events} dropped"),
            ("worker", observed.worker_id),
            ("machine", f"{observed.host.cpu}, {observed.host.threads} threads"),
        )


def inspect_receipt(receipt_bytes: bytes) -> ReceiptSummary:
    """Return the summary of a receipt file's bytes. Raises EvidenceError for any other document."""
    receipt = decode_bytes(Receipt, receipt_bytes, max_bytes=RECEIPT.max_bytes, where="receipt")
    digest = digests.receipt_digest(receipt)
    return ReceiptSummary(
        receipt=receipt,
        receipt_id=digests.receipt_id(digest),
        receipt_digest=digest,
        core_digest=digests.core_digest(receipt.core),
        chain_digest=digests.chain_digest(receipt.core),
        proves=proves(receipt),
        does_not_prove=does_not_prove(receipt),
    )


def _rows(receipt: Receipt) -> str:
    row_class = receipt.core.runtime_class.prompt_class
    return f"{row_class.floor} to {row_class.max_rows}"


def _disclosure(receipt: Receipt) -> str:
    disclosed = receipt.core.disclosed
    if disclosed is None:
        return "private: prompt and output are blinded"
    return f"public: prompt {disclosed.prompt_digest}, output {disclosed.output_digest}"


def _evidence_words(receipt: Receipt) -> str:
    evidence = receipt.core.evidence
    level = evidence.level.replace("_", " ")
    if evidence.state_root is None:
        return level
    return f"{level}: {evidence.state_leaves} states of {evidence.layers} layers"


def _memory_words(receipt: Receipt) -> str:
    rss = receipt.observed.rss
    before, peak, after = (round(part / 2**20) for part in (rss.before, rss.peak, rss.after))
    return f"{before} MiB before, {peak} MiB peak, {after} MiB kept after"
