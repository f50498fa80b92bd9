"""How fast measuring is, how much memory it takes, and what it costs beside the model.

    .venv/bin/python benchmarks/measuring.py            # about an hour on 2 cores
    .venv/bin/python benchmarks/measuring.py --quick    # minutes: fewer masks
    .venv/bin/python benchmarks/measuring.py --json     # one object with named figures

SmolLM2-135M-Instruct on the CPU; what is compared is measured side by side in one process, in
turns, so that the ratios hold whatever else the machine does.

* scoring: log-probability of 32 items under masks of 2 % of the heads, of recall, and of two more
  tasks: in copying no two prompts begin alike, in inflection all share their examples; through the
  bench with its journal, against a plain padded forward pass of transformers over the same masks x
  items, with no mask, whole rows and all logits; and against the published procedure, which loads
  the model for every mask and scores one item at a time (measured on a few masks, scaled).
* writing: 64 new tokens under several masks, against one mask and one prompt at a time through
  transformers' `generate`; the texts must be the same.  float32: in a lower precision the last bits
  of a batch decide between tokens that are equally likely.
* memory: peak of a run against the peak of one plain batch, each in a process of its own, without
  what loading took.
* many masks: a simulated model, the real bench and journal, up to 10,000 masks; going on with it.
* GPU: an estimate, with its arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from editor import capabilities, design
from editor.batching import BATCH_TOKENS, Shape, bytes_a_token
from editor.capabilities.base import Capability, Continuation, Likelihood
from editor.chat import prompt_ids
from editor.measure import Bench, Task, as_mask
from editor.progress import Silent
from editor.recipe import make_recipe
from editor.records import Head, Item, Mask
from editor.session import Options, loaded_bench, open_model
from editor.store import Journal

MODEL = "smollm2-135m"
N_ITEMS, SHARE_OUT, N_NEW = 32, 0.02, 64
LLAMA_8B = Shape(32, 4096, 14336, 32, 1024, 128256, 2)


class NoMemory:
    """A journal that keeps nothing."""

    def get(self, key: str) -> None:
        return None

    def append(self, key: str, value_json: str) -> None: ...


class Timed:
    """Adds up the time inside some calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def opened_bench(dtype: str, journal: Any) -> tuple[Any, Bench]:
    """The real model on a bench."""
    options, quiet = Options(), Silent()
    opened = open_model(MODEL, options, quiet)
    return opened, loaded_bench(opened, dtype, journal, options, quiet)


def task_of(name: str) -> Task:
    """The items of the search split that come first."""
    capability = capabilities.get(name)
    return Task(capability, capability.items("search")[:N_ITEMS])


def masks_of(heads: Sequence[Head], n_masks: int) -> list[Mask]:
    """Stratified masks of 2 % of the heads."""
    size = round(SHARE_OUT * len(heads))
    rows = design.stratified(
        range(len(heads)), n_units=len(heads), n_masks=n_masks, size=size, seed=0
    ).rows
    return [as_mask([heads[unit] for unit in row]) for row in rows]


def scoring(name: str, dtype: str, n_masks: int, n_published: int) -> dict[str, float]:
    """Seconds a mask: through the bench, by a plain forward pass, by the published procedure."""
    with tempfile.TemporaryDirectory() as folder, Journal.open(Path(folder, "j")) as journal:
        opened, bench = opened_bench(dtype, journal)
        task, masks = task_of(name), masks_of(opened.spec.heads(), n_masks)
        model: Any = bench.model
        rows = token_rows(model, task)
        scores = bench.scores(task, [()])  # warm; what a run measures first
        plain_forward(model._model, rows, 1)
        inside, forward = Timed(), Timed()
        took = {"bench": 0.0, "plain": 0.0}
        turn = max(1, n_masks // 10)
        for start in range(0, n_masks, turn):
            chunk = masks[start : start + turn]
            with watched(model, inside, forward):
                took["bench"] += seconds(lambda c=chunk: scores.extend(bench.scores(task, c)))
            took["plain"] += seconds(lambda c=chunk: plain_forward(model._model, rows, len(c)))
        published = seconds(
            lambda: [one_published(opened, dtype, rows, mask) for mask in masks[:n_published]]
        )
    per_mask = took["bench"] / n_masks
    n_tokens = sum(map(len, rows))
    return {
        "masks": n_masks,
        "items": len(rows),
        "tokens_a_mask": n_tokens,
        "tokens_a_second": n_tokens / per_mask,
        "seconds_a_mask": per_mask,
        "plain_seconds_a_mask": took["plain"] / n_masks,
        "of_plain_forward": took["bench"] / took["plain"],
        "published_seconds_a_mask": published / n_published,
        "times_published": published / n_published / per_mask,
        "outside_model": 1 - inside.seconds / took["bench"],
        "outside_forward": 1 - forward.seconds / took["bench"],
    }


@contextmanager
def watched(model: Any, inside: Timed, forward: Timed) -> Any:
    """Time what is inside the masked model, and what is inside transformers' forward pass."""
    raw = model._model
    model.likelihoods, raw.forward = inside.around(model.likelihoods), forward.around(raw.forward)
    try:
        yield
    finally:
        del model.likelihoods, raw.forward


def token_rows(model: Any, task: Task) -> list[list[int]]:
    """Prompts with their answers, as token ids."""
    requests = [r for item in task.items for r in task.capability.scorer.requests(item)]
    return sorted((model._encode(n, r).ids for n, r in enumerate(requests)), key=len)


@torch.inference_mode()
def plain_forward(raw: Any, rows: Sequence[list[int]], copies: int) -> None:
    """What transformers takes for the rows, padded, in batches of as many tokens."""
    everything = sorted(list(rows) * copies, key=len)
    width = len(everything[-1])
    step = max(1, BATCH_TOKENS // width)
    for start in range(0, len(everything), step):
        batch = everything[start : start + step]
        width = len(batch[-1])
        ids = torch.tensor([row + [0] * (width - len(row)) for row in batch])
        real = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in batch])
        raw(input_ids=ids, attention_mask=real, use_cache=False)


@torch.inference_mode()
def one_published(opened: Any, dtype: str, rows: Sequence[list[int]], mask: Mask) -> float:
    """Load the model, zero the heads' columns, score one item after the other."""
    from transformers import AutoModelForCausalLM

    loaded: Any = AutoModelForCausalLM.from_pretrained(
        opened.source.folder, dtype=getattr(torch, dtype), local_files_only=True
    )
    places = {at.layer: at for at in opened.spec.layers}
    for head in mask:
        at = places[head.layer]
        span = slice(head.head * at.head_dim, (head.head + 1) * at.head_dim)
        loaded.get_submodule(at.module).weight[:, span] = 0
    total = 0.0
    for row in rows:
        ids = torch.tensor([row])
        logits = loaded(input_ids=ids).logits[0, -2].float()
        total += float(logits[row[-1]] - logits.logsumexp(0))
    return total


def writing(n_masks: int, n_prompts: int) -> dict[str, Any]:
    """Tokens a second: all masks and prompts together, and one by one."""
    opened, bench = opened_bench("float32", NoMemory())
    model: Any = bench.model
    masks = masks_of(opened.spec.heads(), n_masks)
    english = capabilities.get("english").items("search")
    prompts = [(item.prompt + item.answer)[:80] for item in english[:n_prompts]]
    model.generate(prompts[:2], masks[:1], max_new_tokens=4)  # warm, and the trial
    ids: list[Any] = []
    decode = model._tokenizer.batch_decode
    model._tokenizer.batch_decode = lambda rows, **how: ids.extend(rows) or decode(rows, **how)
    together = seconds(lambda: model.generate(prompts, masks, max_new_tokens=N_NEW))
    alone: list[Any] = []
    one_by_one = seconds(
        lambda: alone.extend(write_one(model, p, mask) for mask in masks for p in prompts)
    )
    n_tokens = sum(map(len, ids))
    return {
        "masks": n_masks,
        "prompts": n_prompts,
        "tokens": n_tokens,
        "tokens_a_second": n_tokens / together,
        "one_by_one_tokens_a_second": n_tokens / one_by_one,
        "times_one_by_one": one_by_one / together,
        "identical": ids == alone,
    }


@torch.inference_mode()
def write_one(model: Any, prompt: str, mask: Mask) -> list[int]:
    """One prompt under one mask, by transformers' own loop."""
    ids = torch.tensor([prompt_ids(model._tokenizer, prompt)])
    with model.knocked_out([mask]):
        out = model._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=N_NEW,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=0,
        )
    return model._writer._cut(out[0, ids.shape[1] :].tolist())


def memory(dtype: str) -> dict[str, float]:
    """Peaks of two processes, in MiB."""
    plain, run = (peak_of(what, dtype) for what in ("plain", "run"))
    return {"model_and_a_batch_mib": plain, "run_mib": run, "run_of_model_and_batch": run / plain}


def peak_of(what: str, dtype: str) -> float:
    """The peak that a child process says it had."""
    done = subprocess.run(
        [sys.executable, __file__, "--peak", what, dtype],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout.split()[-1])


def own_peak(what: str, dtype: str) -> float:
    """Peak of this process from after loading on, in MiB (Linux)."""
    opened, bench = opened_bench(dtype, NoMemory())
    model: Any = bench.model
    task = task_of("recall")
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    if what == "plain":
        rows = token_rows(model, task)
        plain_forward(model._model, rows, max(1, BATCH_TOKENS // sum(map(len, rows))))
    else:
        bench.scores(task, [(), *masks_of(opened.spec.heads(), 16)])
        bench.scores(task, [(head,) for head in opened.spec.heads()[100:124]])
    line = next(x for x in Path("/proc/self/status").read_text().split("\n") if "VmHWM" in x)
    return int(line.split()[1]) / 1024


class Simulated:
    """A model that takes no time."""

    def likelihoods(
        self, requests: Sequence[Continuation], masks: Sequence[Mask], **_: Any
    ) -> list[list[Likelihood]]:
        return [[Likelihood(-0.5 - len(mask) / 8, 1, 1)] * len(requests) for mask in masks]

    def gradients(self, requests: Sequence[Continuation], mask: Mask) -> list[list[float]]:
        raise NotImplementedError

    def generate(
        self, prompts: Any, masks: Any, *, max_new_tokens: int, stop: Any = (), templated: Any = 0
    ) -> Any:
        raise NotImplementedError


def many_masks(counts: Sequence[int]) -> dict[str, float]:
    """Seconds by number of masks and items, and for going on with the largest journal."""
    heads = [Head(layer, head) for layer in range(32) for head in range(32)]
    items = make_recipe(model=MODEL, capability="recall").search_items
    out: dict[str, float] = {"items": items}
    with tempfile.TemporaryDirectory() as folder:
        for n in counts:
            file, masks = Path(folder, str(n)), masks_of(heads, n)
            out[f"seconds_for_{n}"] = run_simulated(file, masks, items)
            out[f"seconds_to_go_on_with_{n}"] = run_simulated(file, masks, items)
        out["mib_of_journal"] = file.stat().st_size / 2**20
        out["seconds_for_twice_the_items"] = run_simulated(Path(folder, "b"), masks, 2 * items)
    few, many = counts[-2], counts[-1]
    out["seconds_a_mask_many_of_few"] = (
        out[f"seconds_for_{many}"] / many / (out[f"seconds_for_{few}"] / few)
    )
    return out


def run_simulated(file: Path, masks: Sequence[Mask], n_items: int) -> float:
    """Seconds from opening the journal to the last mask's scores."""
    items = tuple(Item(key=str(n), prompt=f"{n}", answer=" x", variant="") for n in range(n_items))
    recall_like: Capability = capabilities.get("recall")
    task = Task(recall_like, items)
    began = time.perf_counter()
    with Journal.open(file) as journal:
        Bench(Simulated(), journal).scores(task, masks)
    return time.perf_counter() - began


def gpu_estimate() -> dict[str, Any]:
    """Llama-3.1-8B, bfloat16, one A100 of 80 GB: what the hardware allows, by arithmetic."""
    weights, flops, bandwidth = 8.03e9, 312e12, 2.0e12
    used, fed = 0.45, 0.6  # of the arithmetic and of the bandwidth: what large products reach
    prompt, items, masks, new, rows = 50, 100, 200, 64, 512
    read = flops * used / (2 * weights)
    cache = rows * (prompt + new / 2) * 2 * LLAMA_8B.n_layers * LLAMA_8B.kv_width * 2
    moved = (2 * weights + cache) / (bandwidth * fed)
    step = max(moved, rows / read)
    written = rows / step
    score_s = masks * items * prompt / read
    write_s = masks * items * (prompt / read + new / written)
    free = 0.6 * (80e9 - 2 * weights)
    return {
        "read_tokens_a_second": read,
        "written_tokens_a_second": written,
        "localization_scored_minutes": score_s / 60,
        "localization_written_minutes": write_s / 60,
        "arithmetic": [
            f"read: {flops:.3g} FLOP/s x {used} / (2 x {weights:.3g} FLOP a token) = "
            f"{read:,.0f} tokens/s",
            f"written: a step reads 2 x {weights:.3g} bytes of weights and {cache / 1e9:.1f} GB of "
            f"keys and values for {rows} rows, at {bandwidth:.2g} bytes/s x {fed}: "
            f"{1000 * moved:.0f} ms; its arithmetic takes {1000 * rows / read:.0f} ms; the slower "
            f"of both: {written:,.0f} tokens/s",
            f"batch: {free / 1e9:.0f} GB / {bytes_a_token(LLAMA_8B, 'score', prompt):,} bytes a "
            "token, and at most 65,536 tokens",
            f"{masks} masks x {items} items x {prompt} tokens, scored: {score_s / 60:.1f} min; "
            f"and {new} new tokens written: {write_s / 60:.1f} min",
        ],
    }


def seconds(work: Callable[[], object]) -> float:
    """Seconds that a call takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(quick: bool, dtype: str, only: Sequence[str]) -> dict[str, Any]:
    """All figures."""
    scored = (dtype, 20 if quick else 100, 1 if quick else 3)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "scoring": lambda: scoring("recall", *scored),
        "scoring_nothing_shared": lambda: scoring("copying", *scored),
        "scoring_examples_shared": lambda: scoring("inflection", *scored),
        "writing": lambda: writing(*((4, 8) if quick else (8, 12))),
        "memory": lambda: memory(dtype),
        "many_masks": lambda: many_masks((100, 1000) if quick else (100, 1000, 10000)),
        "gpu_estimate": gpu_estimate,
    }
    out: dict[str, Any] = {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} threads, torch {torch.__version__}",
        "dtype": dtype,
    }
    for name in only or parts:
        out[name] = parts[name]()
        print(name, json.dumps(rounded(out[name])), file=sys.stderr)
    return out


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """Numbers to four digits."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in values.items()}


def main() -> None:
    """Run, and print the figures or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer masks: minutes")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--dtype", default="bfloat16", help="of scoring and memory: bfloat16")
    parser.add_argument("--only", nargs="+", default=[], help="these parts")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peak:
        print(own_peak(*asked.peak))
        return
    found = measure(asked.quick, asked.dtype, asked.only)
    if asked.json:
        print(json.dumps(found, indent=1))
        return
    for name, values in found.items():
        if not isinstance(values, dict):
            print(f"{name}: {values}")
            continue
        print(f"\n{name}")
        for key, value in rounded(values).items():
            lines = value if isinstance(value, list) else [value]
            print(f"  {key}: " + "\n    ".join(map(str, lines)))


if __name__ == "__main__":
    main()
