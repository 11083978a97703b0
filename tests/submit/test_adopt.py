"""Which lines of a user's own script start a training, and what `transom adopt` makes of them."""

from __future__ import annotations

import subprocess

import pytest

from transom_cli.submit.adopt import TRAP, Kind, adopt, find_steps, lacks_trap, step_notes

SCRIPT = r"""#!/bin/bash
#SBATCH --nodes=4
#SBATCH --time=24:00:00
# srun in a comment
module load cuda
export HEAD=$(srun -N1 hostname)
./monitor.sh &
cat > conf.yaml <<EOF
srun python not_a_command.py
EOF
srun --ntasks-per-node=1 hostname
srun mkdir -p /tmp/cache
echo "srun python quoted.py"
srun --cpu-bind=cores \
     -N 4 --output=logs/%t.out \
     python train.py --lr 1e-4 2>&1 | tee train.log
if srun python eval.py; then rsync -a out/ store/; fi
"""


def kinds(body: str) -> list[tuple[int, Kind]]:
    return [(step.line, step.kind) for step in find_steps("#!/bin/bash\n" + body)]


def test_training_lines_are_found_and_helpers_are_left() -> None:
    steps = find_steps(SCRIPT)
    assert [(s.line, s.kind) for s in steps] == [
        (11, Kind.HELPER),
        (12, Kind.HELPER),
        (14, Kind.TRAINING),
        (17, Kind.TRAINING),
    ]


def test_only_the_word_srun_changes() -> None:
    changed = adopt(SCRIPT)
    assert changed.replace(TRAP, "") == SCRIPT.replace("srun --cpu", "transom launch --cpu").replace(
        "if srun python", "if transom launch python"
    )
    assert changed.splitlines()[4:6] == [TRAP.rstrip(), "module load cuda"]
    assert adopt(changed) == changed
    subprocess.run(["bash", "-n"], input=changed.encode(), check=True)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("srun python train.py", Kind.TRAINING),
        ("/usr/bin/srun python train.py", Kind.TRAINING),
        ("exec srun -n 8 ./train.sh", Kind.TRAINING),
        ("time srun --mpi=pmix bash -c 'cd /x && python train.py'", Kind.TRAINING),
        ("FOO=1 srun torchrun --nproc-per-node=8 train.py", Kind.TRAINING),
        ('ARGS="-N 2 --cpu-bind=cores"; srun $ARGS python train.py', Kind.TRAINING),
        ('CMD="python train.py"\nsrun -l $CMD', Kind.TRAINING),
        ('srun "$@"', Kind.TRAINING),
        ('LAUNCH="srun -N 2"\n$LAUNCH python train.py', Kind.TRAINING),
        ("for s in 1 2; do srun python train.py --seed $s; done", Kind.TRAINING),
        ("srun python train.py &\nwait", Kind.TRAINING),
        ("srun apptainer exec --nv train.sif python train.py", Kind.TRAINING),
        ("srun -N1 -n1 nvidia-smi", Kind.HELPER),
        ("srun bash -c 'rm -rf /tmp/x'", Kind.HELPER),
        ('CMD="hostname -s"\nsrun $CMD', Kind.HELPER),
        ("srun --multi-prog roles.conf", Kind.UNSUPPORTED),
        ("srun -w node1 python train.py", Kind.UNSUPPORTED),
        ("srun -N1 a.py : -N1 b.py", Kind.UNSUPPORTED),
        ("mpirun -np 8 python train.py", Kind.UNSUPPORTED),
        ("srun mpirun python train.py", Kind.UNSUPPORTED),
        ("torchrun --nproc-per-node 8 train.py", Kind.UNSUPPORTED),
        ("transom launch python train.py", Kind.LAUNCHED),
    ],
)
def test_what_a_line_starts(body: str, kind: Kind) -> None:
    assert [found for _, found in kinds(body)] == [kind]


def test_steps_at_the_same_time_are_not_changed() -> None:
    body = "srun -N1 python a.py &\nsrun -N1 python b.py &\nwait\n"
    assert [kind for _, kind in kinds(body)] == [Kind.UNSUPPORTED] * 2
    assert adopt("#!/bin/bash\n" + body) == "#!/bin/bash\n" + body


@pytest.mark.parametrize("srun", ["srun", "/usr/bin/srun", "/opt/slurm-23/srun/bin/srun"])
def test_srun_in_a_variable_is_changed_where_it_is_set(srun: str) -> None:
    script = f'#!/bin/bash\nLAUNCH="{srun} -N 2"\n$LAUNCH python a.py\n$LAUNCH python b.py\n'
    assert 'LAUNCH="transom launch -N 2"\n$LAUNCH python a.py' in adopt(script)


def test_other_languages_are_left_alone() -> None:
    assert find_steps("#!/usr/bin/env python3\nimport os\nos.system('srun python x')\n") == ()
    assert find_steps("#!/bin/csh\nsrun python train.py\n") == ()


def test_a_trap_of_the_users_own_is_kept() -> None:
    script = "#!/bin/bash\ntrap 'cleanup' SIGTERM\nsrun python train.py\n"
    assert not lacks_trap(script)
    assert adopt(script) == script.replace("srun", "transom launch")


def test_notes_name_the_line_and_the_word() -> None:
    (note,) = step_notes("#!/bin/bash\nsrun python train.py\n", "t.sbatch")
    assert note.startswith("line 2: write `transom launch` in place of `srun`") and "transom adopt t.sbatch" in note
    (note,) = step_notes("#!/bin/bash\ntransom launch python train.py\n", "t.sbatch")
    assert "trap" in note
    assert list(step_notes(adopt(SCRIPT), "t.sbatch")) == []


@pytest.mark.parametrize("text", ["'", '"', "$(", "`", "${", "<<EOF", "<<'EOF'\n", "a\\", "((", "srun $X", "x=$(a '"])
def test_half_a_script_is_read_to_its_end(text: str) -> None:
    find_steps("#!/bin/bash\n" + text)
    find_steps('#!/bin/bash\nX="$X"\n' + text)


@pytest.mark.parametrize(
    ("body", "redirected"),
    [
        ("srun python t.py > t.log 2>&1", True),
        ("srun python t.py | tee t.log", True),
        ("srun python t.py &> t.log", True),
        ("srun python t.py 2>&1 || exit 3", False),
        ("srun python t.py < input", False),
    ],
)
def test_redirected_output_is_known(body: str, redirected: bool) -> None:
    (step,) = find_steps("#!/bin/bash\n" + body)
    assert step.redirected is redirected
