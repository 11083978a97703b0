"""Masks hide what differs between the lines of a storm, and nothing that a rule or a label looks for."""

from __future__ import annotations

import pytest

from transom_cli.diagnose.logs import grammar
from transom_cli.diagnose.logs.masks import literals, masked, words_like
from transom_cli.diagnose.logs.rule_files import load
from transom_cli.diagnose.logs.rulebook import Rulebook

BOOK = Rulebook(load())
MASKS = BOOK.word_masks(range(len(BOOK.rules)))


@pytest.mark.parametrize(
    ("expression", "texts"),
    [
        (
            r"^torch\.OutOf(?:Memory)+Error: (?P<node>[\w.-]+) is \d{1,3}x",
            ["torch.OutOf", "Memory", "Error: ", " is ", "x"],
        ),
        (r"(?i)Links? (down|up)\b[a]*b?c+d", ["link", " ", "down", "up", "c", "d"]),
        (r"a{2}b[^]\]x]c\{d(?!e)", ["b", "c{d", "e"]),
    ],
)
def test_literals_of_an_expression(expression: str, texts: list[str]) -> None:
    assert literals(expression) == texts


def test_what_rules_and_labels_look_for_is_not_masked() -> None:
    expressions = [one for rule in BOOK.rules for one in (*rule.match, *rule.unless)] + list(grammar.EXPRESSIONS)
    texts = {text for rule in BOOK.rules for text in rule.any}.union(*map(literals, expressions))
    told = [masked(text.encode()) for text in texts]
    for before, after in ((b"some ", b" thing"), (b"(", b")"), (b"", b"")):
        lines = MASKS.of(b"\n".join(before + text + after for text in told)).split(b"\n")
        assert [text for text, line in zip(told, lines, strict=True) if text not in line] == []
    whole = [text for text in told if text[:3].isalpha() and text[-3:].isalpha()]
    lines = MASKS.of(b"\n".join(b"some" + text + b"thing" for text in whole)).split(b"\n")
    assert [text for text, line in zip(whole, lines, strict=True) if text not in line] == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "[rank3]: OSError: cannot read /data/qvzk/IMG_7.jpg: 0x7f3ab1",
            "[rank9]: OSError: cannot read /data/hwoj/YXQ_1.jpg: 0xb00c8d",
        ),
        ("gpu1:4711:4799 [2] NCCL WARN Qvzkp: closed", "gpu7:4712:4799 [3] NCCL WARN Hwojp: closed"),
    ],
)
def test_words_of_their_own_are_masked(one: str, other: str) -> None:
    assert MASKS.of(masked(one.encode())) == MASKS.of(masked(other.encode())) != masked(one.encode())


def test_hosts_and_levels_in_labels_are_not_masked() -> None:
    lines = masked(b"qvzk:4711:4799 [2] NCCL WARN x\nE0105 12:07:20.08 8705 torch/qvzk.py:869] y")
    assert MASKS.of(lines).startswith(b"qvzk:0000:0000 [0] NCCL WARN x\nE0000 00:00:00.00 0000 torch/xxxx.py:000]")


@pytest.mark.parametrize(
    ("text", "alike", "others"),
    [
        (  # `data` and `jpg` tell, as parts of a text or an expression
            b"/data/qvzkp/IMG_0.jpg of 0x0f0ab0 at fe00::0qv0 xyz",
            (b"/data/hwojt/YXQ_0.jpg of 0x000c0d at 0b00::0000 xyz",),
            (
                b"/date/hwojt/YXQ_0.jpg of 0x000c0d at 0b00::0000 xyz",
                b"/data/error/YXQ_0.jpg of 0x000c0d at 0b00::0000 xyz",
                b"/data/hwojt/YXQ_0.jpg of 0y000c0d at 0b00::0000 xyz",
                b"/data/hwojt/yxq_0.jpg of 0x000c0d at 0b00::0000 xyz",
                b"/data/hwojt/YXQ_0.jpg of 0x000c0d at 0b00:0:000 xyz",
                b"/data/hwojt/YXQ_0.jpg of 0x000c0d at 0b00::0000 xyw",
            ),
        ),
    ],
)
def test_texts_of_one_form_have_one_mask(text: bytes, alike: tuple[bytes, ...], others: tuple[bytes, ...]) -> None:
    like = words_like(text, MASKS.of(text))
    for other in (text, *alike, *others):
        match = like.fullmatch(other)
        same = match is not None and not MASKS.telling(match.groups())
        assert same == (MASKS.of(other) == MASKS.of(text)) == (other not in others), other
