"""Times a step on one process and on two, with one thread each: forward passes, noise passes, waiting.

    python -m benchmarks.divided_steps [--steps 5] [--layers 12]
    python -m benchmarks.divided_steps --out results/measured/benchmarks --page docs/scaling.md

The model has the shape of OPT-125M and random weights. One and two processes take turns: other load meets both. It
takes about four minutes on two quiet cores. divided_steps.md has the table and its provenance: medians over the steps,
of the busiest process, in seconds. Processor time depends little on what else the machine does. `--page` puts the
same text into a page of the documentation, between two comments.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import OPTConfig, OPTForCausalLM

from zo.distributed.loss import DividedLoss
from zo.distributed.processes import join
from zo.optim import OPTIMIZERS
from zo.run.provenance import provenance
from zo.weights.space import ParameterSpace

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "BSZO, k = 3": ("bszo", {"k": 3}),
    "n-SPSA, n = 4": ("mezo", {"n": 4}),
}
EXAMPLES, TOKENS = 4, 32
BEGIN, END = "<!-- divided_steps: begin -->", "<!-- divided_steps: end -->"


class Times(NamedTuple):
    """Seconds of a step.

    Attributes:
        step: All of it.
        busy: Processor time of it.
        forward: Processor time of its forward passes.
        wait: In collectives.
        bytes: That all processes sent.
    """

    step: float
    busy: float
    forward: float
    wait: float
    bytes: float


def measure(layers: int, case: str, steps: int) -> Times:
    """Returns the medians of some steps in this process, which divides them with those that were started with it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    processes = join(300)
    model = OPTForCausalLM(
        OPTConfig(hidden_size=768, ffn_dim=3072, num_hidden_layers=layers)
    ).eval()
    ids = torch.randint(3, 50_000, (EXAMPLES, TOKENS))
    name, settings = CASES[case]
    params = ParameterSpace.of(model, "merged", "philox")
    method = OPTIMIZERS[name]
    optimizer = method.optimizer(params, method.config(**settings), lr=1e-6, seed=0)
    inside = 0.0

    @torch.inference_mode()
    def loss() -> float:
        nonlocal inside
        start = time.process_time()
        found = model(input_ids=ids, labels=ids).loss.item()
        inside += time.process_time() - start
        return float(found)

    divided = DividedLoss(lambda _: loss, [1], processes)
    found = []
    for step in range(steps + 1):
        processes.exchange(None)
        start, busy, wait = time.perf_counter(), time.process_time(), processes.seconds
        sent, inside = processes.bytes, 0.0
        optimizer.step(divided)
        mine = Times(
            time.perf_counter() - start,
            time.process_time() - busy,
            inside,
            processes.seconds - wait,
            processes.bytes - sent,
        )
        if step > 0:  # the first one allocates and compiles
            found.append([max(column) for column in zip(*processes.exchange(mine), strict=True)])
    return Times(*(statistics.median(column) for column in zip(*found, strict=True)))


def _member(env: dict[str, str], pipe: Any, *args: Any) -> None:
    os.environ.update(env)
    pipe.send(measure(*args))


def on(world: int, *args: Any) -> Times:
    """Returns what process 0 of so many measures."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipes, started = [], []
    for rank in range(world):
        env = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        env |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        receiver, sender = context.Pipe(duplex=False)
        started.append(context.Process(target=_member, args=(env, sender, *args)))
        pipes.append(receiver)
    try:
        for process in started:
            process.start()
        if not pipes[0].poll(600):
            raise TimeoutError("process 0 did not answer within 600 s")
        found: Times = pipes[0].recv()
        for process in started:
            process.join(60)
        return found
    finally:
        for process in started:
            process.kill()


def table(layers: int, steps: int) -> Iterator[str]:
    """Yields the lines of the table as they are measured, and their provenance."""
    yield "| method | processes | step | processor | forward, processor | waiting | waiting, of a step | bytes |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for case in CASES:
        one, two = (on(world, layers, case, steps) for world in (1, 2))
        for world, times in ((1, one), (2, two)):
            cells = " | ".join(f"{value:.3f}" for value in times[:-1])
            share = times.wait / times.step
            yield f"| {case} | {world} | {cells} | {share:.1%} | {times.bytes:.0f} |"
        ratios = (one.step / two.step, one.busy / two.busy, one.forward / two.forward)
        yield f"| {case} | times faster | {' | '.join(f'{of:.2f}' for of in ratios)} | | | |"
    made = provenance(torch.device("cpu"))
    versions = ", ".join(f"{name} {made['versions'][name]}" for name in ("torch", "transformers"))
    yield ""
    yield (
        f"{made['device']}, one thread per process; OPT of {layers} layers and width 768, float32, {EXAMPLES}"
        f" examples of {TOKENS} tokens; `merged`, `philox`; seconds, medians of {steps} steps; {versions};"
        f" commit {made['git_revision'][:12]}{'+' * made['git_dirty']}; {made['started'][:10]}."
    )


def fill(page: Path, text: str) -> None:
    """Puts a text between the two comments of a page."""
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"--page: {page} lacks {BEGIN} or {END}")
    page.write_text(f"{before}{begin}\n\n{text}\n{end}{after}")


def main() -> None:
    """Measures; prints and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--out", type=Path, default=Path("results/local/benchmarks"))
    parser.add_argument("--page", type=Path, help="a page with the two comments")
    args = parser.parse_args()
    lines = []
    for line in table(args.layers, args.steps):
        print(line, flush=True)
        lines.append(f"{line}\n")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "divided_steps.md").write_text("".join(lines))
    if args.page is not None:
        fill(args.page, "".join(lines))


if __name__ == "__main__":
    main()
