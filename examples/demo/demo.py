"""Three trainings share one GPU at 0.5, 0.3 and 0.2, and a fourth request is refused for lack of memory.

python examples/demo/demo.py [--seconds 20] [--plot out/demo.svg] [--page out/demo.html]

Prints a table of the measured shares, draws them as a picture, and saves a page of the dashboard.
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
COLORS = ("#0072b2", "#d55e00", "#009e73")
# `milligpu top` measures the average of this many seconds.
WINDOW = 10
NO_CAPACITY = 75


@dataclass
class Training:
    """A running training, its progress and its measured shares."""

    name: str
    share: float
    memory: str
    process: subprocess.Popen[str]
    step: int = 0
    loss: float = 0.0
    measured: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    stepped: list[float] = field(default_factory=list[float])

    def follow(self) -> None:
        for line in self.process.stdout or ():
            words = line.split()
            if words and words[0].isdigit():
                self.step, self.loss = int(words[0]), float(words[1])
                self.stepped.append(time.monotonic())

    def rate(self) -> float:
        """Steps per second within the window."""
        recent = [at for at in self.stepped if at > time.monotonic() - WINDOW]
        return len(recent) / min(WINDOW, time.monotonic() - self.stepped[0]) if recent else 0.0


def explain(text: str) -> None:
    print(f"\n# {text}", flush=True)


def show_command(*command: str) -> None:
    print(f"$ {shlex.join(command)}".replace(MILLIGPU, "milligpu").replace(sys.executable, "python"), flush=True)


def start(name: str, share: float, memory: str, steps: int = 0) -> Training:
    training = ["examples/train.py", "--rate", "0.001", "--steps", str(steps)]
    command = [MILLIGPU, "run", "-p", str(share), "-m", memory, "--", sys.executable, *training]
    show_command(*command)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    made = Training(name, share, memory, process)
    threading.Thread(target=made.follow, daemon=True).start()
    return made


def measure(trainings: list[Training], at: float) -> None:
    """Ask `milligpu top` for the share of each training."""
    state = json.loads(subprocess.run([MILLIGPU, "top", "-o", "json"], capture_output=True, check=True).stdout)
    uses = {session["pid"]: session["shares"][0] for session in state["sessions"]}
    for training in trainings:
        use = uses.get(training.process.pid)
        if use and use["utilization"] is not None and training.step:
            training.measured.append((at, use["utilization"]))


def table(trainings: list[Training], seconds: float) -> Table:
    left = WINDOW - seconds
    title = f"the first average of {WINDOW} s in {left:.0f} s" if left > 0 else f"after {seconds:.0f} s"
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), title=title, title_justify="left")
    for column in ("TRAINING", "SHARE", "MEASURED", "GPU TIME", "STEPS", "STEPS/S", "LOSS"):
        shown.add_column(column, justify="left" if column in ("TRAINING", "GPU TIME") else "right")
    for training in trainings:
        measured = training.measured[-1][1] if training.measured else 0.0
        bar = "█" * round(measured * 40)
        row = [training.name, f"{training.share:.2f}", f"{measured:.3f}" if training.measured else "-", bar]
        shown.add_row(*row, str(training.step), f"{training.rate():.1f}", f"{training.loss:.4f}")
    return shown


def plot(path: Path, trainings: list[Training]) -> None:
    """Draw the measured shares over time as SVG, each with its requested share as a dashed line."""
    width, height, left, right, top, bottom = 860, 440, 64, 150, 72, 50
    last = max((at for each in trainings for at, _ in each.measured), default=WINDOW + 1.0)

    def x(at: float) -> float:
        return left + (at - WINDOW) / (last - WINDOW) * (width - left - right)

    def y(share: float) -> float:
        return top + (1 - share / 0.7) * (height - top - bottom)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        ' font-family="system-ui, Helvetica, Arial, sans-serif" font-size="13" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="30" font-size="17" font-weight="600">Three trainings share one GPU</text>',
        f'<text x="{left}" y="49">fraction of GPU time, average of the last {WINDOW} s; dashed: requested</text>',
    ]
    for tick in range(8):
        parts.append(f'<path d="M{left} {y(tick / 10):.1f}H{width - right}" stroke="#e4e4e4"/>')
        parts.append(f'<text x="{left - 8}" y="{y(tick / 10) + 4:.1f}" text-anchor="end">0.{tick}</text>')
    for training, color in zip(trainings, COLORS, strict=True):
        line = " ".join(f"{x(at):.1f},{y(min(share, 0.7)):.1f}" for at, share in training.measured)
        requested = y(training.share)
        parts.append(f'<path d="M{left} {requested:.1f}H{width - right}" stroke="{color}" stroke-dasharray="4 4"/>')
        parts.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        label = f"{escape(training.name)}: {training.share:g}"
        parts.append(f'<text x="{width - right + 10}" y="{requested + 4:.1f}" fill="{color}">{label}</text>')
    middle, label = (left + width - right) / 2, "seconds since all three trainings run"
    parts.append(f'<text x="{middle}" y="{height - 12}" text-anchor="middle">{label}</text>')
    for tick in range(WINDOW, int(last) + 1, 5):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - bottom + 18}" text-anchor="middle">{tick}</text>')
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*parts, "</svg>", ""]), encoding="utf-8")


def summary(console: Console, trainings: list[Training]) -> None:
    shown = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    for column in ("TRAINING", "SHARE", "MEASURED", "ERROR", "STEPS", "OF ALL STEPS", "LOSS"):
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


def start_dashboard(page: Path, folder: str) -> subprocess.Popen[str]:
    """Let the dashboard measure what follows; it writes one page when it is told to end."""
    explain("Let the dashboard watch:")
    command = [MILLIGPU, "dashboard", "--machine", "--listen", "127.0.0.1:0", "--save", str(page)]
    show_command(*command)
    command += ["--history", f"{folder}/history.db"]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)


def refuse_a_fourth() -> None:
    """Ask for more memory than is free, and quote the refusal."""
    explain("They hold 7 of 8 GiB. A fourth request for 2 GiB is refused on purpose:")
    command = [MILLIGPU, "run", "--no-wait", "-p", "0", "--limit", "1", "-m", "2Gi", "--", "true"]
    show_command(*command)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    print("".join(f"  | {line}\n" for line in done.stderr.splitlines()), end="")
    if done.returncode != NO_CAPACITY:
        sys.exit(f"the fourth request ended with exit code {done.returncode}, not {NO_CAPACITY}")
    print(
        f"  Refused as expected, with exit code {NO_CAPACITY}: no capacity. The three trainings go on.", flush=True
    )


def run(seconds: float, picture: Path, page: Path, folder: str) -> None:
    console = Console(highlight=False)
    explain("Start a software GPU with 8 GiB, which needs no GPU in this machine:")
    softgpu = [MILLIGPU, "softgpu", "up", "--memory", "8Gi", "--speed", SPEED]
    show_command(*softgpu)
    subprocess.run(softgpu, check=True, stdout=subprocess.DEVNULL)
    explain("Compile the kernels once, with a short training:")
    start("first", 0.5, "4Gi", steps=3).process.wait()
    explain("Start three trainings that share the GPU:")
    trainings = [start("large", 0.5, "4Gi"), start("medium", 0.3, "2Gi"), start("small", 0.2, "1Gi")]
    dashboard = None
    try:
        # The first two steps compile the graph; measure from the third on.
        while not all(each.step > 2 for each in trainings):
            if any(each.process.poll() is not None for each in trainings):
                sys.exit("a training ended early")
            time.sleep(0.1)
        dashboard = start_dashboard(page, folder)
        refuse_a_fourth()
        explain(f"Measure the shares: MEASURED is the fraction of the GPU's time within the last {WINDOW} s.")
        began = time.monotonic()
        with Live(table(trainings, 0), console=console, auto_refresh=False) as live:
            while (now := time.monotonic() - began) < WINDOW + seconds or not all(
                len(each.measured) > 1 for each in trainings
            ):
                # Before that the average still has the time in which the trainings started.
                if now >= WINDOW:
                    measure(trainings, now)
                live.update(table(trainings, now), refresh=True)
                time.sleep(1)
    finally:
        if dashboard is not None:
            dashboard.terminate()
            dashboard.wait()
        for training in trainings:
            training.process.send_signal(signal.SIGTERM)
        for training in trainings:
            training.process.wait()
    plot(picture, trainings)
    explain("The result: the requested share of each training, and what it got:")
    summary(console, trainings)
    print(f"\nPicture: {picture}\nPage: {page}")


# The modeled GPU is this much slower than a real one, so that the trainings divide its time and not the CPU's.
SPEED = "0.1"


def _stop(number: int, _frame: object) -> None:
    sys.exit(128 + number)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="after the first average")
    parser.add_argument("--plot", type=Path, default=Path("out/demo.svg"))
    parser.add_argument("--page", type=Path, default=Path("out/demo.html"))
    arguments = parser.parse_args()
    # As after Ctrl-C, everything that was started is stopped.
    signal.signal(signal.SIGTERM, _stop)
    with tempfile.TemporaryDirectory(prefix="milligpu-demo-") as folder:
        # Apart from software GPUs and sessions that already run on this machine.
        os.environ["XDG_RUNTIME_DIR"] = folder
        try:
            run(arguments.seconds, arguments.plot, arguments.page, folder)
        finally:
            subprocess.run([MILLIGPU, "softgpu", "down"], check=False)


if __name__ == "__main__":
    main()
