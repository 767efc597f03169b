"""Write the JSON Schemas of the documents into schemas/."""

from __future__ import annotations

from pathlib import Path

from tallystick.contracts.schemas import schema_files

DIRECTORY = Path(__file__).resolve().parent.parent / "schemas"


def main() -> None:
    """Replace every generated file; a file that is no longer generated is removed."""
    DIRECTORY.mkdir(exist_ok=True)
    files = schema_files()
    for path in DIRECTORY.glob("*.schema.json"):
        if path.name not in files:
            path.unlink()
    for name, content in files.items():
        (DIRECTORY / name).write_bytes(content)


if __name__ == "__main__":
    main()
