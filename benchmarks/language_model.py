"""Trains nmtkit's recipe `shakespeare` and transformers' GPT2LMHeadModel in the same setting, in turn, and scores both.

    python benchmarks/language_model.py --mirror DIR --work DIR [--rounds 2] [--threads N] [--updates 2000] [--compile]

Both are 4 layers, 4 heads, 128 wide, 64 characters, 12 sequences per update, AdamW 0.9/0.99 with decay 0.1, clipping 1,
rate 1e-3 after 100 updates and by cosine to 1e-4, no dropout, float32. GPT-2 is trained by a plain loop on random
windows, as nanoGPT does. The loss is that of every character of the validation text but the first, in windows of 64.
With --compile, both are trained with torch.compile as well.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LENGTH, BATCH = 64, 12


def nmtkit(work: Path, mirror: Path, threads: int, updates: int, number: int, compiled: bool) -> dict[str, float]:
    """Train with nmtkit; return the loss of the validation text and the characters per second of training."""
    run = work / f"nmtkit{'-compiled' if compiled else ''}-{number}"
    if run.exists():
        sys.exit(f"{run} exists; take another --work, as its rates would not be of the same hours as those of GPT-2")
    command = [Path(sys.executable).with_name("nmtkit"), "run", "shakespeare", "--run-dir", run, "--mirror", mirror]
    settings = ["training.precision=float32", f"training.max_steps={updates}", "training.validate_every_steps=100000",
                f"training.seed={number + 1}", "training.report_every_steps=50",
                f"training.compile={str(compiled).lower()}"]  # fmt: skip
    for setting in settings:
        command += ["--set", setting]
    subprocess.run([*map(str, command), "--threads", str(threads), "--quiet"], check=True)
    scores = json.loads((run / "scores.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rates = [line["target_tokens_per_second"] for line in lines if line.get("target_tokens_per_second")]
    return {"loss": scores["valid"]["nll"]["score"], "rate": statistics.median(rates)}


def gpt2(text: str, threads: int, updates: int, number: int, compiled: bool) -> dict[str, float]:
    """Train GPT-2 by a plain loop; the same figures."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.set_num_threads(threads)
    torch.manual_seed(number + 1)
    characters = sorted(set(text))
    ids = torch.tensor([characters.index(character) for character in text])
    train, valid = ids[: int(0.9 * len(ids))], ids[int(0.9 * len(ids)) :]
    sizes = {"n_positions": LENGTH, "n_embd": 128, "n_layer": 4, "n_head": 4}
    dropouts = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(characters), **sizes, **dropouts, use_cache=False))
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    trained = torch.compile(model) if compiled else model
    seconds = []
    for step in range(1, updates + 1):
        begun = time.perf_counter()
        done = (step - 100) / max(1, updates - 100)
        rate = 1e-3 * step / 100 if step < 100 else 1e-4 + 9e-4 * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
        for group in optimizer.param_groups:
            group["lr"] = rate
        starts = torch.randint(len(train) - LENGTH, (BATCH,))
        x = torch.stack([train[start : start + LENGTH] for start in starts])
        y = torch.stack([train[start + 1 : start + LENGTH + 1] for start in starts])
        loss = torch.nn.functional.cross_entropy(trained(x).logits.flatten(0, 1), y.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begun)
    model.eval()
    total = 0.0
    with torch.no_grad():
        for start in range(0, len(valid) - 1, LENGTH):
            row = valid[start : start + LENGTH + 1]
            logits = model(row[None, :-1]).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits, row[1:], reduction="sum"))
    return {"loss": total / (len(valid) - 1), "rate": LENGTH * BATCH / statistics.median(seconds)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mirror", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--compile", action="store_true", help="measure both with torch.compile, too")
    arguments = parser.parse_args()
    folder = "raw.githubusercontent.com/karpathy/char-rnn/6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e/data/tinyshakespeare"
    text = (arguments.mirror / folder / "input.txt").read_text(encoding="utf-8")
    found: dict[str, list[dict[str, float]]] = {}
    for number in range(arguments.rounds):
        for compiled in [False, True] if arguments.compile else [False]:
            common = (arguments.threads, arguments.updates, number, compiled)
            suffix = ", compiled" if compiled else ""
            results = {
                "nmtkit": nmtkit(arguments.work, arguments.mirror, *common),
                "GPT2LMHeadModel": gpt2(text, *common),
            }
            for name, result in results.items():
                found.setdefault(name + suffix, []).append(result)
                print(f"{name}{suffix}: loss {result['loss']:.4f}, {result['rate']:,.0f} characters/s", flush=True)
    rates = {name: statistics.median(result["rate"] for result in results) for name, results in found.items()}
    for name, rate in rates.items():
        print(f"{name}: {rate / rates['GPT2LMHeadModel']:.2f} times the characters/s of GPT2LMHeadModel")


if __name__ == "__main__":
    main()
