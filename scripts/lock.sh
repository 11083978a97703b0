#!/usr/bin/env bash
# Write requirements/login-node.txt: every package of an installation without torch, with its version and its hashes, for
# all supported versions of Python. Needs uv (`pip install uv`). Versions stay as they are in the file where they fit;
# `make lock UPGRADE=1` takes the newest.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

command -v uv >/dev/null || {
    printf 'error: uv was not found\n\nhint: pip install uv\n' >&2
    exit 1
}
# hatchling builds transom itself, so that nothing without a hash is downloaded
uv pip compile pyproject.toml <(printf 'hatchling>=1.21\n') --quiet --universal --generate-hashes --no-emit-index-url \
    --no-annotate --python-version 3.10 --custom-compile-command 'make lock' ${UPGRADE:+--upgrade} \
    --output-file requirements/login-node.txt >/dev/null
