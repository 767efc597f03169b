"""Write docs/spec/vectors/set/ anew: a whole artifact set with its audit key, and set.json.

``python -m tests.golden.write_example_set``. The set is made by the program, set.json by the
independent checker (tests/golden/independent), which computes everything in it from the files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tests.golden.example_sets import AUDIT_KEY, COMMITTED, example
from tests.golden.independent import bundles, findings
from tests.golden.independent.check_set import check_set
from tests.support.sets import SIGNER
from tests.support.vectors import spec_vectors

FOLDER = spec_vectors() / "set"
README = """# An example artifact set

A whole set, as one run leaves it ([artifact-set.md](../../artifact-set.md)), for other
implementations to verify. Nobody computed it: the model, its states, its sketches and its text are
invented, everything else is what a real run has. A model of eight layers with experts
(`qwen35moe`), five prompt tokens and three generated ones, policy `sequential`, evidence parts
`states` and `gemm`.

| | |
|---|---|
| audit key | `{audit_key}` |
| trusted public key | `{key}` |
| receipt | `{receipt_digest}` |

The key is an example and protects nothing. [set.json](../set.json) has what is to be computed
from the files: ids, digests, commitments, keys, both parts of the bundle.

The states can be recomputed too: value i (from 0) of the row of layer l at position p is the
float32 l + p/16 + i/4096. Rows of layers have 64 values, rows of logits 1000.

Git keeps no permissions: a verifier that asks for private files to be closed to others (this
program does) needs `chmod 600 *.palw.bundle palw-state.sqlite3` on a copy. The files are written by
`python -m tests.golden.write_example_set`. The state store's bytes depend on the version of SQLite
(and with them the marker's), all other bytes are the same each time.
"""


def readme() -> str:
    return README.format(
        audit_key=AUDIT_KEY.raw.hex(),
        key=SIGNER.public.raw.hex(),
        receipt_digest=example(COMMITTED).receipt_digest,
    )


def values(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the content of set.json for ``files``."""
    found = check_set(files, AUDIT_KEY.raw, SIGNER.public.raw)
    return {
        "spec": "docs/spec/artifact-set.md",
        "about": "what follows from the files in set/ and its audit key",
        "note": "Bytes are hex, numbers of 64 bits decimal texts.",
        **findings.of(found, bundles.envelope_of(files), AUDIT_KEY.raw),
    }


def read() -> dict[str, bytes]:
    """Return the files of the folder."""
    return {path.name: path.read_bytes() for path in FOLDER.iterdir() if path.suffix != ".md"}


def text(files: Mapping[str, bytes]) -> str:
    return json.dumps(values(files), indent=1, ensure_ascii=True) + "\n"


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.iterdir():
        path.unlink()
    files = example(COMMITTED).files()
    for name, data in files.items():
        (FOLDER / name).write_bytes(data)
    (FOLDER / "README.md").write_text(readme(), encoding="utf-8")
    (spec_vectors() / "set.json").write_text(text(files), encoding="utf-8")


if __name__ == "__main__":
    main()
