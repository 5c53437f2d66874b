"""Three trainings share one GPU at 0.5, 0.3 and 0.2; a fourth is refused; a table and a picture say how it went.

python examples/demo/demo.py [--seconds 25] [--plot out/demo.svg]
"""

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

HERE = Path(__file__).parent
MILLIGPU = str(Path(sys.executable).parent / "milligpu")
COLOURS = ("#0072b2", "#d55e00", "#009e73")
# How long the last measurement of each training may look back.
WINDOW = 10


@dataclass
class Training:
    """One of them, and what became of it."""

    name: str
    share: float
    memory: str
    process: subprocess.Popen[str]
    step: int = 0
    loss: float = 0.0
    measured: list[tuple[float, float]] = field(default_factory=list)
    stepped: list[float] = field(default_factory=list)

    def follow(self) -> None:
        for line in self.process.stdout or ():
            words = line.split()
            if words and words[0].isdigit():
                self.step, self.loss = int(words[0]), float(words[1])
                self.stepped.append(time.monotonic())

    def rate(self) -> float:
        """Steps per second of late."""
        recent = [at for at in self.stepped if at > time.monotonic() - WINDOW]
        return len(recent) / min(WINDOW, time.monotonic() - self.stepped[0]) if recent else 0.0


def say(*command: str) -> None:
    print(f"\n$ {shlex.join(command)}".replace(MILLIGPU, "milligpu").replace(sys.executable, "python"), flush=True)


def start(name: str, share: float, memory: str, steps: int = 0) -> Training:
    training = ["examples/train.py", "--rate", "0.001", "--steps", str(steps)]
    command = [MILLIGPU, "run", "-p", str(share), "-m", memory, "--", sys.executable, *training]
    say(*command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    made = Training(name, share, memory, process)
    threading.Thread(target=made.follow, daemon=True).start()
    return made


def measure(trainings: list[Training], since: float) -> None:
    state = json.loads(subprocess.run([MILLIGPU, "top", "-o", "json"], capture_output=True, check=True).stdout)
    uses = {session["pid"]: session["uses"][0] for session in state["sessions"]}
    for training in trainings:
        use = uses.get(training.process.pid)
        if use and use["measured"] is not None and training.step:
            training.measured.append((time.monotonic() - since, use["measured"]))


def table(trainings: list[Training], seconds: float) -> Table:
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title=f"{seconds:.0f} s", title_justify="left")
    for column in ("TRAINING", "WANTED", "MEASURED", "", "STEPS", "STEPS/S", "LOSS"):
        shown.add_column(column, justify="left" if column in ("TRAINING", "") else "right")
    for training in trainings:
        measured = training.measured[-1][1] if training.measured else 0.0
        bar = "█" * round(measured * 40)
        row = [training.name, f"{training.share:.2f}", f"{measured:.3f}" if training.measured else "compiling", bar]
        shown.add_row(*row, str(training.step), f"{training.rate():.1f}", f"{training.loss:.4f}")
    return shown


def plot(path: Path, trainings: list[Training]) -> None:
    """The measured shares over time as SVG, each beside what was wanted."""
    width, height, left, right, top, bottom = 860, 420, 64, 150, 56, 50
    last = max((at for each in trainings for at, _ in each.measured), default=1.0)

    def x(at: float) -> float:
        return left + at / last * (width - left - right)

    def y(share: float) -> float:
        return top + (1 - share / 0.7) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="30" font-size="17" font-weight="600">Three trainings, one GPU: measured share</text>',
    ]
    for tick in range(8):
        parts.append(f'<path d="M{left} {y(tick / 10):.1f}H{width - right}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick / 10) + 4:.1f}" text-anchor="end">0.{tick}</text>')
    for training, colour in zip(trainings, COLOURS, strict=True):
        line = " ".join(f"{x(at):.1f},{y(min(share, 0.7)):.1f}" for at, share in training.measured)
        wanted = y(training.share)
        parts.append(f'<path d="M{left} {wanted:.1f}H{width - right}" stroke="{colour}" stroke-dasharray="4 4"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        label = f"{escape(training.name)}: wants {training.share:g}"
        parts.append(f'<text x="{width - right + 10}" y="{wanted + 4:.1f}" fill="{colour}">{label}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 12}" text-anchor="middle">seconds</text>')
    for tick in range(0, int(last) + 1, 10):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def summary(console: Console, trainings: list[Training]) -> None:
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("TRAINING", "WANTED", "MEASURED", "OFF BY", "STEPS", "OF ALL STEPS", "LOSS"):
        shown.add_column(column, justify="left" if column == "TRAINING" else "right")
    together = max(each.stepped[0] for each in trainings)
    steps = [sum(at > together for at in each.stepped) for each in trainings]
    for training, made in zip(trainings, steps, strict=True):
        measured = training.measured[-1][1]
        off = f"{abs(measured - training.share) * 100:.1f} points"
        part = f"{made / max(1, sum(steps)):.2f}"
        row = [training.name, f"{training.share:.2f}", f"{measured:.3f}", off, str(training.step), part]
        shown.add_row(*row, f"{training.loss:.4f}")
    console.print(shown)


def run(seconds: float, picture: Path) -> None:
    console = Console(highlight=False)
    cards = [MILLIGPU, "softgpu", "up", "--memory", "8Gi", "--speed", SPEED]
    say(*cards)
    subprocess.run(cards, check=True)
    print("\nThe kernels are compiled once and kept:", flush=True)
    start("first", 0.5, "4Gi", steps=3).process.wait()
    trainings = [start("large", 0.5, "4Gi"), start("medium", 0.3, "2Gi"), start("small", 0.2, "1Gi")]
    try:
        # The first two steps compile; from the third on each is one graph.
        while not all(each.step > 2 for each in trainings):
            if any(each.process.poll() is not None for each in trainings):
                sys.exit("a training ended early")
            time.sleep(0.1)
        fourth = [MILLIGPU, "run", "--no-wait", "-p", "0", "--limit", "1", "-m", "2Gi", "--", "true"]
        say(*fourth)
        refused = subprocess.run(fourth, check=False).returncode
        print(f"exit code {refused}\n", flush=True)
        began = time.monotonic()
        with Live(table(trainings, 0), console=console, auto_refresh=False) as live:
            while (now := time.monotonic() - began) < seconds:
                measure(trainings, began)
                live.update(table(trainings, now), refresh=True)
                time.sleep(1)
    finally:
        for training in trainings:
            training.process.send_signal(signal.SIGTERM)
        for training in trainings:
            training.process.wait()
    plot(picture, trainings)
    console.print()
    summary(console, trainings)
    console.print(f"\npicture: {picture}")


# The modelled card runs so much slower than a real one that its time, not the CPU's, is what the three divide.
SPEED = "0.1"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--plot", type=Path, default=Path("out/demo.svg"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="milligpu-demo-") as folder:
        # Beside whatever else runs on this machine.
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            run(arguments.seconds, arguments.plot)
        finally:
            subprocess.run([MILLIGPU, "softgpu", "down"], check=False)


if __name__ == "__main__":
    main()
