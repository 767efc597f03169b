"""``tallystick bundle``: dataset bundles (docs/spec/bundles.md)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tallystick.cli.options import PATH, json_option, model_option
from tallystick.cli.output import emit, note, table
from tallystick.cli.progress import WorkProgress

if TYPE_CHECKING:
    from tallystick.bundles.check import CheckedBundle
    from tallystick.canonical.json import JSONValue


@click.group()
def command() -> None:
    """Make and check dataset bundles; declare the runs over one.

    A bundle is a directory with data/, task/, a manifest that names every file by sha256, and a
    reference to the model.
    """


@command.command()
@click.argument("source", type=PATH, metavar="SRC")
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="DIR",
    help="The bundle: a new or empty directory.",
)
@model_option
@json_option
def create(source: Path, output: Path, model: str, as_json: bool) -> None:
    """Make a bundle of SRC for a model.

    SRC holds data/, task/, and perhaps bundle.yaml with imagery, licence, splits and run
    parameters. The bundle is checked before it gets its name.

    Exit status: 0, 4 SRC makes no bundle or the model is no good, 6 the place cannot be written.
    """
    from tallystick.store.home import home
    from tallystick.worker.datasets import create_bundle

    with WorkProgress() as work:
        made = create_bundle(source, output, model, home(), progress=work.update)
    if made.left_out:
        note(f"left out of the bundle: {', '.join(made.left_out)}")
    document = _document(made.bundle)
    document["left_out"] = list(made.left_out)
    emit(document, as_json=as_json, lines=_words(made.bundle))


@command.command()
@click.argument("directory", type=PATH, metavar="DIR")
@json_option
def check(directory: Path, as_json: bool) -> None:
    """Check that a directory is exactly what its manifest declares.

    Fail closed: any other file or directory, a missing or different one, a link or special file,
    an executable one, an unusual name, a change while reading.

    Exit status: 0 it holds, 1 it does not (the first path is named), 4 there is no bundle.
    """
    from tallystick.worker.datasets import check_bundle

    bundle = check_bundle(directory)
    emit({**_document(bundle), "status": "checked"}, as_json=as_json, lines=_words(bundle))


@command.command()
@click.argument("directory", type=PATH, metavar="DIR")
@click.option(
    "--split", required=True, metavar="NAME", help="The split whose tiles get a run each."
)
@click.option(
    "--output",
    type=PATH,
    required=True,
    metavar="RUNS",
    help="Where the run files go: a new or empty directory that only you can enter.",
)
@click.option(
    "--tile", "tiles", multiple=True, metavar="Z/X/Y", help="Only this tile; may be repeated."
)
@click.option(
    "--model", metavar="MODEL", help="Where the worker finds the model. Default: the bundle's name."
)
@json_option
def runs(
    directory: Path,
    split: str,
    output: Path,
    tiles: Sequence[str],
    model: str | None,
    as_json: bool,
) -> None:
    """Declare a run for each tile of a split, as files for `submit`.

    The bundle is checked first. A run file is private: it holds the prompt and the blind of its
    commitments.

    Exit status: 0, 1 the bundle does not hold, 4 there is no such bundle, split or tile or no
    usable prompt template, 6 the place cannot be written.
    """
    from tallystick.attest.keyfiles import commit_key
    from tallystick.bundles.runs import declare_runs, write_runs
    from tallystick.store.home import home
    from tallystick.worker.datasets import check_bundle

    bundle = check_bundle(directory)
    declared = declare_runs(
        bundle, split, commit_key=commit_key(home()), model_path=model, tiles=tiles or None
    )
    paths = write_runs(declared, output)
    rows: list[JSONValue] = [
        {"file": str(path), "tile": run.tile, "run_id": run.run.run_id}
        for path, run in zip(paths, declared, strict=True)
    ]
    document: JSONValue = {"bundle_digest": bundle.bundle_digest, "split": split, "runs": rows}
    emit(document, as_json=as_json, lines=[*map(str, paths)])


def _document(bundle: CheckedBundle) -> dict[str, JSONValue]:
    files = bundle.manifest.all_files()
    return {
        "directory": str(bundle.directory),
        "name": bundle.manifest.name,
        "bundle_digest": bundle.bundle_digest,
        "task_digest": bundle.task_digest,
        "model_digest": bundle.model_ref.digest,
        "manifest_digest": bundle.manifest_digest,
        "tile_set_digest": bundle.tile_set_digest,
        "source_attestation_digest": bundle.source_attestation_digest,
        "files": len(files),
        "bytes": str(sum(file.size for file in files)),
        "splits": {split.name: len(split.tiles) for split in bundle.manifest.splits},
    }


def _words(bundle: CheckedBundle) -> list[str]:
    files = bundle.manifest.all_files()
    splits = [f"{split.name} ({len(split.tiles)} tiles)" for split in bundle.manifest.splits]
    imagery = bundle.manifest.imagery
    attested = "none: nobody attests where the data is from"
    if bundle.source_attestation_digest is not None:
        attested = f"{bundle.source_attestation_digest}, of this tile set; signature not checked"
    return table(
        [
            ("bundle", str(bundle.directory)),
            ("bundle digest", bundle.bundle_digest),
            ("task digest", bundle.task_digest),
            ("model", f"{bundle.model_ref.name}, {bundle.model_ref.digest}"),
            ("files", f"{len(files)}, {sum(file.size for file in files):,} bytes"),
            ("licence", "not stated" if imagery is None else imagery.license),
            ("splits", ", ".join(splits) or "none"),
            ("tile set digest", bundle.tile_set_digest),
            ("source attestation", attested),
        ]
    )
