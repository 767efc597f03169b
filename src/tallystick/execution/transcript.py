"""What both observed runs and sealing passes write into a transcript (docs/spec/observer.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tallystick.engine.port import (
    DescribedModel,
    EngineSummary,
    GraphNode,
    GraphTensor,
    ModelSummary,
    NodeReading,
)
from tallystick.evidence.observer.records import (
    MetadataEntry,
    ModelRecord,
    Result,
    RuntimeRecord,
    SourceRecord,
    TensorRecord,
)
from tallystick.evidence.observer.writer import (
    EventTemplate,
    Step,
    TranscriptWriter,
    step_template,
    template,
)
from tallystick.execution.child_engine import Reporter

_PIECE: Final = 1 << 20
#: Lines of later steps have longer numbers than those of the first, and the result has to fit too.
LINE_GROWTH: Final = 24
RESULT_ROOM: Final = 64 * 1024
ID_ROOM: Final = 12


class Renderer:
    """Turns readings into lines; what it made of a node is used again for the same node."""

    def __init__(self, observer: str) -> None:
        self._observer = observer
        # By identity: the tap hands out the same object for the same node, and here it stays.
        self._templates: dict[int, tuple[GraphNode, EventTemplate]] = {}
        self._nodes: list[GraphNode] = []
        self._plan = step_template(())

    def lines(self, writer: TranscriptWriter, readings: Sequence[NodeReading], step: Step) -> bytes:
        """Return the lines of one step."""
        nodes = [reading.node for reading in readings]
        if nodes != self._nodes:
            self._nodes = nodes
            self._plan = step_template([self._template(node) for node in nodes])
        return writer.step(self._plan, step, [reading.data for reading in readings])

    def _template(self, node: GraphNode) -> EventTemplate:
        found = self._templates.get(id(node))
        if found is None:
            sources = [SourceRecord(each.name, each.type, each.shape) for each in node.sources]
            found = node, template(self._observer, _tensor(node.tensor), sources)
            self._templates[id(node)] = found
        return found[1]


def _tensor(tensor: GraphTensor) -> TensorRecord:
    return TensorRecord(tensor.name, tensor.op, tensor.type, tensor.shape, tensor.n_bytes)


def send_lines(reporter: Reporter, lines: bytes) -> None:
    """Send ``lines`` in pieces of whole lines."""
    start = 0
    while start < len(lines):
        end = len(lines)
        if end - start > _PIECE:
            end = lines.rfind(b"\n", start, start + _PIECE) + 1
            end = end or lines.index(b"\n", start) + 1
        reporter.data(lines[start:end])
        start = end


def model_record(model: ModelSummary, file_name: str) -> ModelRecord:
    """Return what a header says of a model; ``file_name`` is its file's, without directories."""
    metadata = {entry.key: entry.value for entry in model.metadata}
    file_type = metadata.get("general.file_type", "")
    return ModelRecord(
        path=file_name,
        description=model.description[:200],
        tensor_size_bytes=model.tensor_bytes,
        parameter_count=model.parameters,
        file_type=int(file_type) if file_type.isascii() and file_type.isdigit() else None,
        n_ctx_train=model.context_train,
        n_embd=model.embedding,
        n_layer=model.layers,
        n_head=model.heads,
        n_head_kv=model.heads_kv,
        n_vocab=model.vocabulary,
        rope_type=model.rope_type,
        rope_freq_scale_train=model.rope_frequency_scale,
        metadata=tuple(MetadataEntry(entry.key, entry.value) for entry in model.metadata),
    )


def runtime_record(engine: EngineSummary) -> RuntimeRecord:
    """Return what a header says of the engine."""
    return RuntimeRecord(
        ggml_version=engine.version,
        ggml_commit=engine.commit,
        system_info=engine.system_info,
        supports_gpu_offload=engine.gpu_offload,
        requested_gpu_layers=0,
        devices=(),
    )


def result_record(
    model: DescribedModel,
    prompt: tuple[int, ...],
    generated: tuple[int, ...],
    events: int,
    *,
    emit: bool,
) -> Result:
    """Return the last record; with ``emit`` it carries the bytes of the answer."""
    output = b"".join(model.piece(token, special=False) for token in generated)
    return Result(
        record="result",
        status="ok",
        stop_reason="eog" if model.is_end(generated[-1]) else "n_predict",
        prompt_token_ids=prompt,
        generated_token_ids=generated,
        output_bytes=tuple(output) if emit else (),
        output_n_bytes=len(output),
        event_count=events,
    )
