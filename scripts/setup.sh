#!/bin/sh
# Make the virtual environment that the Makefile uses; quick when there is nothing to do.
#
#   PYTHON   interpreter to use (default: the first suitable of python3, python3.13 … python3.11)
#   VENV     where the environment goes (default: .venv)
#
# Everything is installed from requirements/dev.lock, each file checked against its hash, with
# the user's own pip configuration.
set -eu
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}

fail() {
    echo "error: $1" >&2
    shift
    for line in "$@"; do echo "  $line" >&2; done
    exit 1
}

suitable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

if [ -n "${PYTHON:-}" ]; then
    suitable "$PYTHON" || fail "PYTHON=$PYTHON is not a Python of version 3.11 or newer"
else
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if suitable "$candidate"; then PYTHON=$candidate && break; fi
    done
    [ -n "${PYTHON:-}" ] || fail "no Python of version 3.11 or newer was found" \
        "Debian 12, Ubuntu 24.04 or newer: sudo apt-get install python3 python3-venv" \
        "Fedora: sudo dnf install python3          macOS: brew install python@3.13" \
        "if it has another name: make PYTHON=/path/to/python3.12 ..."
fi

# What the environment was last made from, and for which project files it was last completed.
environment=$("$PYTHON" -c 'import sys; print(sys.version, sys.base_prefix)'
    cat requirements/dev.lock scripts/setup.sh | cksum
    pwd)
project=$(cksum <pyproject.toml)

unchanged() { [ -f "$VENV/$1" ] && [ "$(cat "$VENV/$1")" = "$2" ]; }

install_project() {
    "$VENV/bin/python" -m pip install -qq --no-deps --no-build-isolation --editable .
    printf '%s\n' "$project" >"$VENV/project"
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
if unchanged environment "$environment" && "$VENV/bin/python" -c '' 2>/dev/null; then
    unchanged project "$project" || install_project
    exit 0
fi

"$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "this Python cannot make virtual environments: its module ensurepip is missing" \
        "Debian, Ubuntu: sudo apt-get install python3-venv"

if [ "$(uname -s)" = Linux ]; then
    for pair in libgomp.so.1=libgomp1=libgomp libstdc++.so.6=libstdc++6=libstdc++; do
        library=${pair%%=*}
        packages=${pair#*=}
        "$PYTHON" -c 'import ctypes, sys; ctypes.CDLL(sys.argv[1])' "$library" 2>/dev/null ||
            fail "the engine needs the shared library $library, which is not installed" \
                "Debian, Ubuntu: sudo apt-get install ${packages%%=*}" \
                "Fedora: sudo dnf install ${packages#*=}"
    done
fi

echo "setting up $VENV (once; downloads about 90 MB)" >&2
"$PYTHON" -m venv --clear "$VENV"
# Twice quiet: warnings about the user's own index configuration are not about this project.
"$VENV/bin/python" -m pip install -qq --require-hashes --requirement requirements/dev.lock
install_project
printf '%s\n' "$environment" >"$VENV/environment"
