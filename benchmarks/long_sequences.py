"""Measures memory and time of one training update on one long sequence, each model in a process of its own.

    python benchmarks/long_sequences.py [--lengths 5500 11000] [--threads N] [--model T-DMCA T-D]

d_model 512, 8 heads, d_ff 2048, 32,000 entries, one sequence, float32, Adam; half of the tokens are the source, and the
source is predicted, too. T-DMCA: local, compressed, local, compressed, local. T-D: 6 layers of full attention, in
nmtkit's way; "T-D, scores kept" computes it with stored attention weights, as a plain implementation does.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

MODELS = {
    "T-DMCA": {"self_attention": ["local", "compressed"], "decoder_layers": 5},
    "T-D": {"decoder_layers": 6},
    "T-D, scores kept": {"decoder_layers": 6},
}


def update(name: str, length: int, threads: int) -> dict[str, float]:
    """Make two updates; return the highest memory and the seconds of the second one."""
    import torch

    from nmtkit.config.model_schema import ModelConfig
    from nmtkit.data.batch import batch_of
    from nmtkit.model import attention
    from nmtkit.model.decoder_only import build_model
    from nmtkit.training.loss import batch_loss

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    if name.endswith("kept"):
        attention.MOST_SCORES = sys.maxsize
    sizes = {"architecture": "decoder", "d_model": 512, "d_ff": 2048, "num_heads": 8, "dropout": 0.0, **MODELS[name]}
    model = build_model(ModelConfig.model_validate(sizes), 32_000, 32_000)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, lr=1e-4)
    source = length // 2
    rows = torch.randint(4, 32_000, (2, length - 1)).tolist()
    seconds = 0.0
    for row in rows:
        begun = time.perf_counter()
        batch = batch_of([row[:source]], [row[source:]])  # with the separator, `length` positions
        loss, _ = batch_loss(model, batch, 0.1, source_loss=1.0)
        (loss / length).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - begun
    return {"bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[5500, 11000])
    parser.add_argument("--model", nargs="+", choices=MODELS, default=["T-DMCA", "T-D"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(update(arguments.child[0], int(arguments.child[1]), arguments.threads)))
        return
    for name in arguments.model:
        before = None
        for length in arguments.lengths:
            command = [sys.executable, __file__, "--threads", str(arguments.threads), "--child", name, str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(f"{name}, {length} tokens: failed, {done.stderr.strip().splitlines()[-1:] or done.returncode}")
                continue
            found = json.loads(done.stdout)
            growth = f", {found['bytes'] / before:.2f} x" if before else ""
            before = found["bytes"]
            rate = 1000 * found["seconds"] / length
            print(
                f"{name}, {length} tokens: {found['bytes'] / 2**30:.2f} GiB{growth}, {rate:.2f} ms per token",
                flush=True,
            )


if __name__ == "__main__":
    main()
