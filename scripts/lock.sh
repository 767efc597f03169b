#!/bin/sh
# Write the hashed locks from pyproject.toml (make lock). Needs the network.
#
# core.lock    the verifier                      pip install tallystick
# engine.lock  the verifier and the engine       pip install 'tallystick[engine]'
# worker.lock  the verifier and the worker's      pip install 'tallystick[worker]'
# dev.lock     all of it, for make demo and make test
#
# One resolution for all: the smaller locks are constrained by dev.lock. The oldest supported
# Python resolves, since dependencies that only old versions need would otherwise be missing.
set -eu
cd "$(dirname "$0")/.."
lock_python=${1:-python3.11}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# The locks describe the public index: this machine's mirrors and local wheels stay out.
export PIP_CONFIG_FILE=/dev/null
unset PIP_FIND_LINKS PIP_EXTRA_INDEX_URL PIP_INDEX_URL PIP_CONSTRAINT PIP_NO_INDEX 2>/dev/null || true

"$lock_python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet pip-tools==7.6.2

compile() {
    output=$1
    shift
    CUSTOM_COMPILE_COMMAND="make lock" "$work/venv/bin/pip-compile" pyproject.toml \
        --output-file "$work/$output" --cache-dir "$work/cache" --quiet \
        --generate-hashes --strip-extras --allow-unsafe --no-annotate --resolver backtracking \
        --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options \
        "$@"
    if grep -nE '://|^ *--(index|extra|find|trusted)|^-' "$work/$output"; then
        echo "error: requirements/$output would name a host or an option (above)" >&2
        exit 1
    fi
}

mkdir -p requirements
compile dev.lock --extra engine --extra worker --extra dev
compile engine.lock --extra engine --constraint "$work/dev.lock"
compile worker.lock --extra worker --constraint "$work/dev.lock"
compile core.lock --constraint "$work/dev.lock"
cp "$work/dev.lock" "$work/engine.lock" "$work/worker.lock" "$work/core.lock" requirements/
