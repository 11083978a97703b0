#!/usr/bin/env bash
# Make .frameworks/, a virtual environment with transom and the training frameworks that it is tested with (about 2 GB).
# Safe to repeat; if everything is installed, it returns quickly. A framework that cannot be installed is left out: the
# reason is printed, and the tests of that framework are skipped with it.
#
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.frameworks
STAMP=$VENV/.complete
MISSING=$VENV/missing.txt # frameworks that could not be installed, one per line
LOG=$VENV/install.log
# Without these there is no test at all. The versions in the comments passed the tests.
BASE=('torch==2.13.0' 'numpy>=1.26' 'pytest>=8' 'pytest-timeout>=2.3' 'hypothesis>=6.100')
FRAMEWORK_LIST=(
    'transformers>=5.0,<6' # 5.23.0
    'accelerate>=1.0,<2'   # 1.15.0
    'lightning>=2.5,<3'    # 2.6.6
    'deepspeed>=0.17,<1'   # 0.19.8
    'torchdata>=0.11,<1'   # 0.11.0
    'trl>=1.0,<2'          # 1.16.0
    'torchtitan>=0.2,<1'   # 0.3.0
    'tensorboard>=2.15,<3' # 2.21.0
    'wandb>=0.19,<1'       # 0.31.0
    'mlflow-skinny>=2,<4'  # 3.17.2
)

say() { printf 'frameworks: %s\n' "$*" >&2; }

fail() { # fail WHAT HINT
    printf 'error: %s\n\nhint: %s\n' "$1" "$2" >&2
    exit 1
}

want="$(cksum <scripts/frameworks.sh) $(cksum <pyproject.toml) $PWD"
if [ "$(cat "$STAMP" 2>/dev/null)" = "$want" ]; then
    say "complete: $VENV (remove it to install newer versions)"
    [ ! -s "$MISSING" ] || say "left out: $(cut -d: -f1 "$MISSING" | paste -sd' ')"
    exit 0
fi
"$VENV/bin/python" -c 'import pip' 2>/dev/null || .venv/bin/python -m venv --clear "$VENV"
: >"$MISSING"
: >"$LOG"
pip=("$VENV/bin/python" -m pip --disable-pip-version-check -q install)

say "installing torch and transom into $VENV (10 to 15 minutes with all frameworks)"
"${pip[@]}" "${BASE[@]}" >>"$LOG" 2>&1 || fail "torch cannot be installed: $(tail -n 1 "$LOG")" "see $LOG"
"${pip[@]}" -e '.[metrics]' >>"$LOG" 2>&1 || fail "transom cannot be installed: $(tail -n 1 "$LOG")" "see $LOG"
"${pip[@]}" 'setuptools<81' wheel packaging py-cpuinfo >>"$LOG" 2>&1 || true # deepspeed builds without isolation
for framework in "${FRAMEWORK_LIST[@]}"; do
    name=${framework%%[<>=]*}
    options=()
    [ "$name" != deepspeed ] || options=(--no-build-isolation)
    say "installing $framework"
    # torch is named again, so that no framework replaces it.
    if ! DS_BUILD_OPS=0 "${pip[@]}" "${options[@]}" 'torch==2.13.0' "$framework" >>"$LOG" 2>&1; then
        why=$(grep -iE '^ *(error|.*Error:)' "$LOG" | tail -n 1)
        say "$name is left out: ${why:-see $LOG}"
        printf '%s: %s\n' "$name" "${why:-see $LOG}" >>"$MISSING"
    fi
done
# NVIDIA's client alone; what it depends on is not needed without GPUs.
"${pip[@]}" --no-deps 'nvidia-resiliency-ext>=0.4,<1' defusedxml pyyaml >>"$LOG" 2>&1 || # 0.4.1, 0.7.0
    printf 'nvidia-resiliency-ext: see %s\n' "$LOG" >>"$MISSING"
printf '%s\n' "$want" >"$STAMP"
say "done: $VENV"
