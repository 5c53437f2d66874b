"""The report: its format, its page, and what is never in it."""

import re
from datetime import date
from pathlib import Path

import pytest

from milligpu.checks.result import CheckLevel, failed, passed, skipped
from milligpu.verify.html import render_html
from milligpu.verify.privacy import PrivateWords
from milligpu.verify.report import make_report
from milligpu.verify.suite import TimedResult
from milligpu.wire.verify import VerifiedGpu, VerifiedMachine, VerifyReport, encode_report

GOLDEN = Path(__file__).parents[1] / "wire" / "golden" / "verify-v1.json"
MACHINE = VerifiedMachine(
    False,
    [VerifiedGpu("NVIDIA A10", 23028, "8.6")] * 2,
    "570.86.15",
    "12.8",
    "debian 12",
    "6.1.0",
    "x86_64",
    "3.11.2",
)
PRIVATE = PrivateWords(["trainbox-7.corp.example", "trainbox-7"], ["mallory", "x"], ["1325020032415"])
PLANTED = {
    "host": "trainbox-7",
    "user": "mallory",
    "home": "/home/mallory/models",
    "path": "/srv/secret/weights.bin",
    "path with a space": "'/srv/secret project/weights.bin'",
    "path from here": "secret/weights.bin",
    "relative path": "../secret/weights.bin",
    "serial": "1325020032415",
    "GPU": "GPU-c6eb0813-2b0a-4a52-9b9c-1d3f5e7a9b0c",
    "short GPU": "GPU-c6eb0813",
    "MIG": "MIG-4f2a9c31-77aa-5d02-8f3e-aa11bb22cc33",
    "UUID": "c6eb0813-2b0a-4a52-9b9c-1d3f5e7a9b0c",
    "UUID as digits": "c6eb08132b0a4a529b9c1d3f5e7a9b0c",
    "bus": "00000000:3B:00.0",
    "IPv4": "10.42.7.19",
    "IPv6": "fe80::1ff:fe23:4567:890a",
    "IPv6 in full": "2001:db8:85a3:8d3:1319:8a2e:370:7348",
    "MAC": "3c:ec:ef:12:34:56",
    "mail": "mallory@corp.example",
    "URL": "https://registry.corp.example/v2",
}


def _report(*texts: str) -> VerifyReport:
    results = [
        passed("libcuda", "the limits library, in front of the driver's libcuda.so.570.86.15"),
        passed("shares-70-30", "wanted 70 / 30, measured 70.1 / 29.9", {"error_points": 0.1}),
        failed("granule-bytes", "charged 2 MiB, the driver took 4 MiB", "send us the report"),
        failed("time-slice", "6 ms", "send us the report", CheckLevel.WARNING, {"slice_ms": 6.0}),
        skipped("vllm", "vllm is not installed", "pip install vllm"),
        *(failed("planted", f"before {text} after", f"look at '{text}'") for text in texts),
    ]
    return make_report(MACHINE, [TimedResult(each, 1.25) for each in results], PRIVATE, date(2026, 11, 18))


def test_the_format_is_that_of_the_golden_file() -> None:
    assert encode_report(_report()) + "\n" == GOLDEN.read_text()


@pytest.mark.parametrize("kind", PLANTED)
def test_nothing_private_is_in_the_report(kind: str) -> None:
    planted = PLANTED[kind]
    report = _report(planted)
    for text in (encode_report(report), render_html(report)):
        assert planted.lower() not in text.lower()
        assert "before <" in text or "before &lt;" in text
        assert not re.search("mallory|corp[.]example|trainbox|secret|weights", text, re.IGNORECASE)


def test_what_is_not_private_stays() -> None:
    for text in (
        "wanted 70 / 30, measured 70.1 / 29.9",
        "driver 570.86.15 with libcuda.so.570.86.15",
        "0 of 80 kernels; 1/s; and/or",
        "ended with SIGKILL: CUDA error 700 at 12:30",
        "pip install 'jax[cuda13]', or name the Python that has it: --python PATH",
        "1,234 ns box",
        "send us the report: docs/verify.md",
    ):
        assert PRIVATE.remove(text) == text
    assert PRIVATE.remove("user x runs") == "user <user> runs"


def test_a_page_needs_nothing_from_elsewhere_and_shows_every_check() -> None:
    page = render_html(_report("<script>alert(1)</script>"))
    assert not re.search(r"(?:src|href)=|url\(|@import|<script", page)
    assert "prefers-color-scheme: dark" in page
    for name in ("libcuda", "shares-70-30", "granule-bytes", "time-slice", "vllm"):
        assert f"<code>{name}</code>" in page
    assert page.count('<span class="badge warning">') == 1
    assert "2x NVIDIA A10" in page
    assert "2 of 6 checks failed" in page
