"""Xid and SXid: the catalogue, the action for each code, and many log lines together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transom_cli.health.checks.kernel import RULES_FILE, message, read_site_rules
from transom_cli.health.finding import Finding, Remedy, Verdict
from transom_cli.health.gpu import xid_table
from transom_cli.health.gpu.xid import (
    EVENT_TYPES,
    NO_SITE_RULES,
    GpuEvent,
    SiteRules,
    address,
    catalogue,
    judge_event,
    judge_xids,
    parse_catalogue,
    parse_xid,
    rule_of,
)

M, S, F = Verdict.MONITOR, Verdict.SUSPECT, Verdict.FAIL
GPU = "PCI:0000:0f:00"


def line(code: int, text: str = "pid=2503421, name=python3, Ch 00000008", gpu: str = GPU) -> str:
    return f"NVRM: Xid ({gpu}): {code}, {text}"


def judged(*lines: str, site: SiteRules = NO_SITE_RULES) -> list[Finding]:
    return list(judge_xids("n1", lines, catalogue(site), {"0000:0f:00.0": "GPU-f", "0000:1f:00.0": "GPU-1f"}))


RESTART = [8, 11, 13, 25, 31, 32, *range(39, 42), 60, *range(68, 73), *range(75, 78), 80, *range(82, 87), 88, 89, 94]
RESTART += [*range(96, 106), *range(126, 136), 139]
IGNORE = [37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 121, 137, 141, 152, 153, 157, 160, 161]
RESET = [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]
REBOOT = [79, 151, 168]
UNDECIDED = [45, 48, 54, 74, 78, 142, *range(144, 151), 154, 159, *range(162, 168), 169, 170, 171, 172]


def test_catalogue_is_complete_and_matches_nvidia() -> None:
    known = catalogue()
    assert known.troubles == ()
    codes = sorted(int(code) for kind, code in known.rules if kind == "xid")
    assert codes == sorted(RESTART + IGNORE + RESET + REBOOT + UNDECIDED)
    rows = [row for row in xid_table.TABLE.splitlines() if row]
    assert len(rows) == len(known.rules), "no row twice"
    assert all(rule.name and "," not in rule.name for rule in known.rules.values())


@pytest.mark.parametrize("code", RESTART)
def test_what_the_program_is_to_be_restarted_for_leaves_the_node_alone(code: int) -> None:
    (found,) = judged(line(code))
    assert (found.verdict, found.remedy) == (M, Remedy.RESTART_APP) and "RESTART_APP" in found.evidence


@pytest.mark.parametrize("code", IGNORE)
def test_what_nvidia_ignores_is_watched(code: int) -> None:
    (found,) = judged(line(code))
    assert (found.verdict, found.remedy) == (M, Remedy.NONE)


@pytest.mark.parametrize("code", RESET)
def test_what_nvidia_resets_fails(code: int) -> None:
    (found,) = judged(line(code))
    assert (found.verdict, found.remedy) == (F, Remedy.RESET_GPU) and "RESET_GPU" in found.evidence


@pytest.mark.parametrize("code", REBOOT)
def test_what_nvidia_reboots_fails(code: int) -> None:
    (found,) = judged(line(code))
    assert (found.verdict, found.remedy) == (F, Remedy.REBOOT)


@pytest.mark.parametrize(
    ("code", "verdict", "remedy"),
    [
        (45, M, Remedy.RESTART_APP),
        (48, S, Remedy.RESET_GPU),
        (54, S, Remedy.REPAIR),
        (74, S, Remedy.RESET_GPU),
        (167, S, Remedy.REBOOT),
        (171, S, Remedy.RESET_GPU),
        (172, S, Remedy.RESET_GPU),
        (162, M, Remedy.WATCH),
        (61, M, Remedy.WATCH),
        (9999, M, Remedy.WATCH),
    ],
)
def test_ambiguous_codes_are_not_failures(code: int, verdict: Verdict, remedy: Remedy) -> None:
    (found,) = judged(line(code))
    assert (found.verdict, found.remedy) == (verdict, remedy)


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlink5_codes_go_by_their_own_severity(code: int) -> None:
    fatal = judged(line(code, "RLW_REMAP Fatal XC1 i0 Link 15 (0x004505c6 0x00000001)"))
    mild = judged(line(code, "RLW_REMAP Nonfatal XC1 i0 Link 15 (0x004505c6 0x00000001)"))
    spelt = judged(line(code, "RLW_REMAP Non-fatal XC1 i0 Link 15"))
    assert [f.verdict for f in (*fatal, *mild, *spelt)] == [S, M, M]


def changed(to: str, gpu: str = GPU) -> str:
    return line(154, f"GPU recovery action changed from 0x0 (None) to {to}", gpu)


@pytest.mark.parametrize(
    ("to", "verdict", "remedy"),
    [
        ("0x2 (Node Reboot Required)", F, Remedy.REBOOT),
        ("0x2 (OS Reboot)", F, Remedy.REBOOT),
        ("0x1 (GPU Reset Required)", F, Remedy.RESET_GPU),
        ("0x1 (PF FLR)", F, Remedy.RESET_GPU),
        ("0x4 (Drain and Reset)", F, Remedy.RESET_GPU),
        ("0x3 (Drain P2P)", S, Remedy.RESET_GPU),
        ("0x5 (Recover IMEX Domain)", S, Remedy.AVOID),
        ("0x0 (None)", M, Remedy.NONE),
        ("0x9 (Something New)", S, Remedy.WATCH),
    ],
)
def test_154_is_obeyed(to: str, verdict: Verdict, remedy: Remedy) -> None:
    (found,) = judged(changed(to))
    assert (found.verdict, found.remedy) == (verdict, remedy)


def test_the_last_154_holds_and_none_takes_back_what_was_logged_before() -> None:
    other = "PCI:0000:1f:00"
    reset = line(154, "GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
    lines = (line(95), changed("0x1 (GPU Reset Required)"), line(79, "gone", other), reset)
    found = {(f.device, f.verdict, f.remedy) for f in judged(*lines)}
    assert found == {("GPU-f", M, Remedy.WATCH), ("GPU-1f", F, Remedy.REBOOT), ("GPU-f", M, Remedy.NONE)}
    later = judged(*lines, line(119))
    assert [f.verdict for f in later if "119," in f.evidence] == [F], "what comes after it counts"


def test_one_finding_for_each_code_and_device() -> None:
    found = judged(*[line(94)] * 400, line(94, gpu="PCI:0000:1f:00"), line(31), "nothing of ours")
    assert [(f.device, f.check) for f in found] == [("GPU-f", "gpu_xid"), ("GPU-1f", "gpu_xid"), ("GPU-f", "gpu_xid")]
    assert found[0].evidence == line(94) + " [contained memory error, NVIDIA's action: RESTART_APP, 400 times]"


def test_switches() -> None:
    switch = "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): "
    fatal, mild = judged(switch + "20034, Fatal, Link 30 LTSSM Fault Up", switch + "12028, Non-fatal, Link 61 egress")
    assert (fatal.verdict, fatal.remedy, fatal.device) == (S, Remedy.RESET_GPU, "0000:85:00.0")
    assert (mild.verdict, mild.remedy) == (M, Remedy.WATCH)
    assert judged(switch + "20009, Severity 0 Engine instance 57 Sub-engine instance 00") == [], (
        "detail of the one before"
    )


def test_forms_of_a_line() -> None:
    logged = message(b"[186965.3] NVRM: Xid (0000:0f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off")
    found = parse_xid(logged)
    assert found is not None and (found.code, found.device) == (79, "0000:0f:00")
    bare = parse_xid("NVRM: Xid (PCI:0000:0f:00): 48")
    assert bare is not None and (bare.code, bare.text) == (48, "")
    sliced = parse_xid("NVRM: Xid (PCI:0000:0f:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel")
    assert sliced is not None and (sliced.code, sliced.device) == (94, "0000:0f:00")
    assert parse_xid("NVRM: Xid (PCI:0000:66:00): abc, pid=2280636") is None


@pytest.mark.parametrize("other", ["00000000:0F:00.0", "0000:0f:00.0", "0000:0f:00", "0:f:0"])
def test_addresses_of_one_device(other: str) -> None:
    assert address(other) == address("0000:0f:00")
    assert address("nonsense") == (-1,)


def test_a_site_changes_codes_and_adds_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = tmp_path / "rules"
    rows.write_text(
        "# ours\n"
        "kind,code,name,action,verdict,remedy,note\n"
        "xid,109,context switch timeout,ours,monitor,restart_app,as Meta's gcm has it\n"
        "xid,61,internal micro-controller breakpoint,ours,fail,reset_gpu\n"
        "sxid,20034,LTSSM fault,ours,fail,repair\n"
        "xid,79,gone,ours,perhaps\n"
        "gpu,1,x,y,fail,none\n"
        "nonsense\n"
    )
    monkeypatch.setenv(RULES_FILE, str(rows))
    site = read_site_rules()
    known = catalogue(site)
    assert (known.rules["xid", "109"].verdict, known.rules["xid", "61"].verdict) == (M, F)
    assert known.rules["xid", "79"].verdict is F, "a row that makes no sense changes nothing"
    assert [t.partition(": ")[2].partition(":")[0] for t in known.troubles] == ["line 6", "line 7", "line 8"]
    fatal = "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 30"
    assert judged(fatal, site=site)[0].remedy is Remedy.REPAIR
    assert judge_event("n1", GpuEvent("xid", "GPU-a", xid=61, site=site)).verdict is F
    monkeypatch.setenv(RULES_FILE, str(tmp_path / "nowhere"))
    assert "No such file" in catalogue(read_site_rules()).troubles[0]
    monkeypatch.delenv(RULES_FILE)
    assert read_site_rules() == NO_SITE_RULES


def test_events_of_nvml() -> None:
    def told(event: GpuEvent) -> tuple[str, Verdict, Remedy]:
        found = judge_event("n1", event)
        assert (found.device, found.serial) == ("GPU-a", "7") and "\n" not in found.evidence
        return found.check, found.verdict, found.remedy

    def event(kind: str, xid: int = 0, recovery: int | None = None) -> GpuEvent:
        return GpuEvent(kind, "GPU-a", "7", xid, recovery)

    assert told(event("xid", 79)) == ("gpu_xid", F, Remedy.REBOOT)
    assert told(event("xid", 31)) == ("gpu_xid", M, Remedy.RESTART_APP)
    assert told(event("xid", 154, 2)) == ("gpu_recovery", F, Remedy.REBOOT)
    assert told(event("recovery_action", 0, 1)) == ("gpu_recovery", F, Remedy.RESET_GPU)
    assert told(event("recovery_action", 0, 0)) == ("gpu_recovery", M, Remedy.NONE)
    assert told(event("double_bit_ecc")) == ("gpu_ecc", F, Remedy.RESET_GPU)
    assert told(event("dram_retirement")) == ("gpu_rows", M, Remedy.WATCH)
    assert told(event("dram_retirement_failure")) == ("gpu_rows", F, Remedy.REPAIR)
    assert told(event("gpu_unavailable")) == ("gpu_lost", F, Remedy.REBOOT)
    assert told(event("type 0x100")) == ("gpu_xid", M, Remedy.WATCH)
    assert {judge_event("n1", event(kind)).check for kind in EVENT_TYPES.values()} <= {
        "gpu_xid",
        "gpu_ecc",
        "gpu_rows",
        "gpu_lost",
        "gpu_recovery",
    }
    said = judge_event("n1", event("xid", 95, 1)).evidence
    assert said == (
        "NVML event: Xid 95, uncontained memory error, NVIDIA's action: RESET_GPU;"
        " the driver requests recovery action 1 (GPU reset)"
    )


@given(st.text(max_size=200))
def test_no_line_breaks_the_parser(text: str) -> None:
    for candidate in (
        text,
        f"NVRM: Xid ({text}): 79, x",
        f"NVRM: Xid (PCI:0000:0f:00): 154, {text}",
        f"nvidia-nvswitch2: SXid (PCI:0:0:0): 1, {text}",
    ):
        found = parse_xid(candidate)
        if found is not None:
            assert rule_of(found, catalogue()).verdict in (M, S, F)


@given(st.text())
def test_no_file_of_a_site_breaks_the_catalogue(text: str) -> None:
    found = parse_catalogue(text.splitlines())
    assert len(found.rules) + len(found.troubles) <= len(text.splitlines())
    assert all(re.match(r"line \d+: ", trouble) for trouble in found.troubles)
