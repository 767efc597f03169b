"""Run the benchmarks, or those that are named: ``python -m bench [NAME...]``.

Each is a module of this folder that prints rows of docs/benchmarks.md; each also runs alone, with
options of its own: ``python -m bench.NAME --help``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in FOLDER.glob("*.py") if not path.stem.startswith("_"))
    unknown = set(names) - set(known)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}", file=sys.stderr)
        print(f"there are: {', '.join(known)}", file=sys.stderr)
        return 2
    for name in names or known:
        print(f"\n## {name}\n", flush=True)
        # One process each: what one leaves warm or loaded must not favour the next.
        code = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
