#!/usr/bin/env bash
# Install everything that `make test` and `make demo` need: system packages, and .venv/ with transom in it.
# Safe to repeat; if everything is installed, it returns quickly. Before it installs system packages as root, it lists
# them and asks.
#
#   YES=1 (or CI, as CI systems set it)   install without asking; needed for sudo without a terminal
#   PYTHON=/path/to/python3   the interpreter for .venv/ (default: the first one found that is 3.10 or newer)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The sandbox runs these daemons itself, as the calling user, with its own ports and folders. It does not need the
# services of the packages, and this script enables or starts none. With systemd, the packages may start their own
# (munge, mariadb). These do not conflict with the sandbox.
PACKAGES=(slurmctld slurmd slurm-client slurm-wlm-basic-plugins munge slurmdbd mariadb-server
    fuse3 gcc libc6-dev python3-venv)
PROGRAMS=(slurmctld slurmd sbatch scontrol munged slurmdbd mariadbd fusermount3 cc)
APT_GET=(env DEBIAN_FRONTEND=noninteractive NEEDRESTART_MODE=l apt-get -q -y)
STAMP=.venv/.transom-setup
export PATH="$PATH:/usr/sbin:/sbin:/usr/local/sbin"

# What these packages start by themselves, where systemd runs.
SERVICES="munge and mariadb; slurmctld, slurmd and slurmdbd only once they are configured"

say() { printf 'setup: %s\n' "$*" >&2; }

during() { # during WHAT COMMAND... says what is done, and on a terminal also for how long
    local code=0 clock
    say "$1"
    if [ ! -t 2 ]; then
        "${@:2}"
        return
    fi
    (for ((s = 1; ; s++)); do
        sleep 1
        kill -0 $$ 2>/dev/null || exit # Ctrl-C ends the script, but not what runs in its background
        printf '\rsetup: %d s ' "$s" >&2
    done) &
    clock=$!
    "${@:2}" || code=$?
    kill "$clock"
    wait "$clock" 2>/dev/null || true
    printf '\r\033[K' >&2
    return "$code"
}

fail() { # fail WHAT [HINT...]
    printf 'error: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '\nhint: %s\n' "$*" >&2
    exit 1
}

apt_machine() {
    command -v apt-get >/dev/null && command -v dpkg-query >/dev/null
}

missing_packages() { # missing_packages NAME... asks dpkg, because a program may be installed without its plugins
    local package
    for package in "$@"; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || echo "$package"
    done
}

missing_programs() {
    local program
    for program in "${PROGRAMS[@]}"; do
        command -v "$program" >/dev/null || echo "$program"
    done
}

ask_first() { # ask_first PACKAGE... returns if the user agrees, or if nobody can be asked and root runs this
    local answer
    say "these system packages are needed for a real Slurm on this machine, and are installed as root:"
    say "  $*"
    say "with systemd, the packages start services of their own: $SERVICES"
    [ -z "${YES:-}${CI:-}" ] || return 0
    if [ -t 0 ]; then
        read -r -p "setup: install them? [y/N] " answer
        [[ $answer == [yY]* ]] || fail "Nothing was installed." "install what you need yourself, or run \`make setup YES=1\`"
    elif [ "$(id -u)" -ne 0 ]; then
        fail "There is no terminal to ask on whether to install them with sudo." "run \`make setup YES=1\`"
    fi
}

install_packages() {
    local missing as_root=()
    if ! apt_machine; then
        mapfile -t missing < <(missing_programs)
        [ ${#missing[@]} -eq 0 ] || fail "Not found on this machine: ${missing[*]}" \
            "only Debian and Ubuntu are set up automatically; install what provides them (there: ${PACKAGES[*]})"
        return
    fi
    mapfile -t missing < <(missing_packages "${PACKAGES[@]}")
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" -ne 0 ]; then
        command -v sudo >/dev/null || fail "Packages are missing, and there is no sudo to install them: ${missing[*]}" \
            "ask an admin to run \`apt-get install -y --no-install-recommends ${missing[*]}\`"
        as_root=(sudo)
    fi
    ask_first "${missing[@]}"
    say "installing ${missing[*]}"
    as_root+=("${APT_GET[@]}")
    "${as_root[@]}" update >&2
    "${as_root[@]}" install --no-install-recommends "${missing[@]}" >&2
}

find_python() { # 3.10 or newer, and able to make a virtual environment with pip in it
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3 /usr/bin/python3 python3.{14,13,12,11,10}; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "No Python 3.10 or newer with venv and ensurepip was found." "PYTHON=/path/to/python3 make setup"
}

make_venv() {
    .venv/bin/python -c 'import pip' 2>/dev/null && return
    local python
    python=$(find_python)
    during "making .venv with $python" "$python" -m venv --clear .venv
}

has_torch() {
    .venv/bin/python -c 'import importlib.util as u, sys; sys.exit(u.find_spec("torch") is None)'
}

fill_venv() {
    local pip=(.venv/bin/python -m pip --disable-pip-version-check -q)
    # What is installed depends on pyproject.toml, on the interpreter, and on where this checkout lies.
    local want
    want="$(cksum <pyproject.toml) $PWD $(readlink -f .venv/bin/python)"
    if [ -x .venv/bin/transom ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$want" ] && has_torch; then
        return
    fi
    if ! has_torch; then
        # The release that transom is tested with, where this machine's index has it; any other that fits, else.
        during "installing torch: hundreds of MB, minutes" "${pip[@]}" install 'torch==2.13.0' ||
            during "installing another release of torch" "${pip[@]}" install torch
    fi
    during "installing transom and what it needs: a minute or two" "${pip[@]}" install -e '.[train,dev]'
    printf '%s\n' "$want" >"$STAMP"
    printf 'setup: done. Next: . .venv/bin/activate; transom doctor\n' >&2
}

trap 'printf "\nsetup: interrupted; \`make setup\` continues\n" >&2; exit 130' INT
install_packages
make_venv
fill_venv
