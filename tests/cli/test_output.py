"""Tables fit the terminal without breaking names and numbers."""

import pytest
from rich.console import Console

from milligpu.cli.output import make_table

COLUMNS = ["MODEL", "GPUS", "LARGEST SHARE", "MEMORY", "WHERE", "FREE IN ALL", "REASON"]
ROWS = [["NVIDIA A100-SXM4-40GB", "12", "0.5", "40Gi", "a-node/GPU-213e09cf", "11.5", "too hot: 95 degrees"]]


def shown(width: int) -> list[str]:
    console = Console(width=width, no_color=True, highlight=False)
    with console.capture() as capture:
        console.print(make_table(COLUMNS, ROWS, right=["GPUS"], width=width))
    return capture.get().splitlines()


@pytest.mark.parametrize("width", [80, 100])
def test_a_narrow_terminal_breaks_headers_and_sentences_but_no_name(width: int) -> None:
    lines = shown(width)
    assert max(map(len, lines)) <= width
    for word in ("A100-SXM4-40GB", "a-node/GPU-213e09cf", "40Gi", "LARGEST", "SHARE", "degrees"):
        assert any(word in line.split() for line in lines), word


def test_a_wide_terminal_has_one_line_for_each_row() -> None:
    header, row = shown(150)
    assert "LARGEST SHARE" in header
    assert "too hot: 95 degrees" in row


def test_a_terminal_that_is_too_narrow_even_for_words_loses_nothing() -> None:
    lines = shown(40)
    assert max(map(len, lines)) <= 40
    everything = "".join(sorted("".join(lines).replace(" ", "")))
    assert everything == "".join(sorted("".join([*COLUMNS, *ROWS[0]]).replace(" ", "")))
