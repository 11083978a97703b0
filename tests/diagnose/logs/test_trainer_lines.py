"""Progress in the log lines of training frameworks, as these print it."""

from __future__ import annotations

import pytest

from transom_cli.diagnose.logs.trainer_lines import NOTHING, StepOffset, TrainerReport, read_lines

BAR = "█" * 4
HF_LINE = "{'loss': '3.25', 'grad_norm': '0.8228', 'learning_rate': '1.5e-05', 'epoch': '0.2344'}"
LINES = {
    "transformers 5": (HF_LINE, TrainerReport("Hugging Face", None, 3.25, 1.5e-5, 0.2344)),
    "transformers 4": (
        "{'loss': 2.1, 'grad_norm': 0.5, 'learning_rate': 4e-05, 'epoch': 1.0}",
        TrainerReport("Hugging Face", None, 2.1, 4e-5, 1.0),
    ),
    "trl": (
        "{'loss': '0.0123', 'grad_norm': '1.5', 'learning_rate': '9e-07', 'num_tokens': '8192', 'epoch': '0.01'}",
        TrainerReport("Hugging Face", None, 0.0123, 9e-7, 0.01),
    ),
    "torchtitan": (
        "[rank0]:[titan] 2026-11-24 10:00:00,000 - root - INFO - \x1b[31mstep: 210  \x1b[32mloss:  8.13459  "
        "\x1b[38;5;208mgrad_norm:  1.5000  \x1b[36mmemory:  1.14GiB(1.20%)  \x1b[34mtps: 3,432  "
        "\x1b[36mtflops: 0.25  \x1b[35mmfu: 0.08%\x1b[39m",
        TrainerReport("torchtitan", 210, 8.13459, speed="3,432 tokens/s"),
    ),
    "Megatron": (
        " [2026-11-24 10:00:00] iteration       50/     100 | consumed samples:          200 | elapsed time per "
        "iteration (ms): 100.1 | learning rate: 6.000000E-05 | global batch size:     4 | lm loss: 1.083451E+01 | "
        "loss scale: 1.0 | grad norm: 3.201 | number of skipped iterations:   0 |",
        TrainerReport("Megatron", 50, 10.83451, 6e-5),
    ),
    "DeepSpeed pipeline": (
        "steps: 10 loss: 4.2103 iter time (s): 0.512 samples/sec: 31.250",
        TrainerReport("DeepSpeed", 10, 4.2103, speed="31.250 samples/s"),
    ),
    "DeepSpeed": (
        "[2026-11-24 10:00:00,000] [INFO] [logging.py:107:log_dist] [Rank 0] step=40, skipped=0, lr=[0.001], "
        "mom=[(0.9, 0.999)]",
        TrainerReport("DeepSpeed", 40, lr=0.001),
    ),
    "nanoGPT": ("iter 250: loss 3.2012, time 123.45ms, mfu 1.20%", TrainerReport("", 250, 3.2012)),
    "Lightning": (
        f"Epoch 2:  50%|{BAR}| 8/16 [00:00<00:00, 18.52it/s, v_num=0, train_loss=5.606]",
        TrainerReport("Lightning", None, 5.606, None, 2.0),
    ),
    "tqdm": (f" 60%|{BAR}| 12/20 [00:00<00:00, 14.10it/s]", TrainerReport(bar=(12, 20))),
}


@pytest.mark.parametrize("name", LINES)
def test_line_of_a_framework_is_recognised(name: str) -> None:
    text, expected = LINES[name]
    assert read_lines(f"loading\n{text}\nmore\n") == expected


@pytest.mark.parametrize(
    "text",
    (
        "step 500 of the tokenizer",
        "validate step: 10  loss:  7.1000  memory:  1.14GiB(1.20%)  tps: 3,432",
        "validation loss at iteration 10 | lm loss value: 1.0E+01 | lm loss PPL: 2.2E+04 |",
        "{'eval_loss': '3.1', 'eval_runtime': '2.0', 'epoch': '0.3'}",
        "iter 25",  # half a line
        "loss",
    ),
)
def test_other_lines_report_no_step_and_no_loss(text: str) -> None:
    found = read_lines(text)
    assert (found.step, found.loss) == (None, None)


def test_newest_values_of_several_lines_are_combined() -> None:
    bar = f" 75%|{BAR}| 15/20 [00:00<00:00, 15.05it/s]"
    found = read_lines(f"\r{bar}\r{' ' * 40}\r\n{HF_LINE}\n\r{bar.replace('15/20', '16/20')}")
    assert (found.bar, found.loss, found.epoch) == ((16, 20), 3.25, 0.2344)
    later = found.newer(TrainerReport(loss=2.0))
    assert (later.loss, later.epoch, later.bar) == (2.0, 0.2344, None)


def test_values_are_finite_numbers_and_text() -> None:
    report = read_lines("iter 3: loss nan, time 1ms")
    assert report.step == 3 and report.values == {}
    assert read_lines(HF_LINE).values == {"framework": "Hugging Face", "loss": 3.25, "lr": 1.5e-5, "epoch": 0.2344}


def test_step_of_a_resumed_training_is_learned_from_its_logger() -> None:
    offset = StepOffset()
    offset.see(TrainerReport(step=220), 13)  # the optimizer has gone 3 steps further
    offset.see(TrainerReport(step=230), 20)
    offset.see(TrainerReport(step=240), 32)
    assert offset.offset == 210


def test_logger_that_counts_something_else_is_not_believed() -> None:
    offset = StepOffset()
    for iteration in range(1, 50):  # such as 40 optimizer steps per iteration of a reinforcement learner
        offset.see(TrainerReport(step=iteration), 40 * iteration)
    assert offset.offset is None


def test_progress_bar_counts_once_it_moves_with_the_optimizer() -> None:
    offset = StepOffset()
    for counted in range(1, 5):
        offset.see(TrainerReport(bar=(210 + counted, 500)), counted)
    assert offset.offset is None, "too few steps"
    for counted in range(5, 9):
        offset.see(TrainerReport(bar=(210 + counted, 500)), counted)
    assert offset.offset == 210


def test_progress_bar_of_an_epoch_is_no_step() -> None:
    assert read_lines(f"Epoch 1:  12%|{BAR}| 1/8 [00:00<00:00, 173.09it/s]").bar is None


@pytest.mark.parametrize("accumulated", (2, 4, 8))
def test_progress_bar_of_micro_batches_is_not_believed(accumulated: int) -> None:
    offset = StepOffset()
    for counted in range(1, 100):
        offset.see(TrainerReport(bar=(500 + accumulated * counted, 10_000)), counted)
    assert offset.offset is None


def test_progress_bar_of_an_evaluation_is_not_believed() -> None:
    offset = StepOffset()
    for counted in range(100, 1000, 100):
        for batch in range(0, 5000, 50):
            offset.see(TrainerReport(bar=(batch, 5000)), counted)
    assert offset.offset is None


def test_nothing_is_reported_of_other_output() -> None:
    assert read_lines("x" * 100_000) == NOTHING


def test_absurd_step_is_left_out() -> None:
    assert read_lines(f"iter {'9' * 30}: loss 1.0, time 1ms").step is None
    assert read_lines(f"  1%|{BAR}| {'9' * 30}/{'9' * 31} [00:00<00:00, 1it/s]").bar is None
