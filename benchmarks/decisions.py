"""Decision Transformer's two experiments without a licensed simulator: shortest paths on graphs, and Key-to-Door.

    python benchmarks/decisions.py graph --work DIR [--graphs 20] [--set SECTION.KEY=VALUE]
    python benchmarks/decisions.py key-to-door --work DIR [--seeds 1 2 3 4 5] [--episodes 1000 10000] [--arms dt pbc bc]
        [--recipe key-to-door] [--set SECTION.KEY=VALUE]

graph: a model per graph, trained on 1,000 random walks; 10 episodes from each start on average, beside as many random
walks, the shortest paths, and those over the edges that occur in the walks (the ceiling of what can be known).
key-to-door: 1,000 episodes per model and seed; dt is the Decision Transformer, pbc percentile behaviour cloning (of the
best tenth of the episodes, without those that failed), bc behaviour cloning; dt also with a target of 0 and greedily.
The seeds differ in episodes, weights and play. Each run has a folder in DIR; the same command continues.
"""

import argparse
import json
import shutil
import statistics
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nmtkit.config.recipe import load_recipe
from nmtkit.console import print_table
from nmtkit.data.episodes import Facts
from nmtkit.data.prepare import prepare
from nmtkit.decoding.play import Played, PlayRequest, outcome_of, play, play_at_random
from nmtkit.distributed.workers import Workers
from nmtkit.model_folder import LoadedModel, load_model
from nmtkit.run import Run, find_model
from nmtkit.tasks.environments import GraphEnvironment, steps_to
from nmtkit.training.averaging import average, choose_checkpoints
from nmtkit.training.session import train

ARMS = {"dt": [], "pbc": ["model.returns=false", "data.best_episodes=0.1"], "bc": ["model.returns=false"]}


def trained(folder: Path, recipe_name: str, settings: list[str], threads: int) -> LoadedModel:
    """Return the model of a recipe, trained unless that is done."""
    run = Run(folder)
    if not run.averaged.is_dir():
        recipe = load_recipe(recipe_name, settings)
        prepare(recipe, folder)
        train(recipe, folder, Workers.start("cpu", recipe.training.precision, threads, for_training=True))
        average(choose_checkpoints(folder, at_most=recipe.decoding.average_last), run.averaged, recipe.decoding)
        for unneeded in (run.checkpoints_folder, run.resume_folder):
            shutil.rmtree(unneeded, ignore_errors=True)
    return load_model(find_model(folder))


def share(episodes: list[Played], name: str) -> float:
    return statistics.mean(bool(getattr(episode, name)) for episode in episodes)


def graphs(arguments: argparse.Namespace) -> None:
    """Measure shortest paths on several graphs."""
    rows, lengths = [], {"random walk": [], "model": [], "shortest": []}
    stitched, arrived = 0, 0
    for seed in range(1, arguments.graphs + 1):
        folder = arguments.work / f"graph-{seed}"
        settings = [f"data.environment_seed={seed}", f"data.episodes_seed={seed}", f"training.seed={seed}"]
        loaded = trained(folder, "shortest-path", [*settings, *arguments.set], arguments.threads)
        environment, facts = GraphEnvironment(seed), Facts.of(loaded.tokenizer)
        request = PlayRequest(
            episodes=10 * len(environment.starts),
            seed=seed,
            prior=arguments.prior,
            min_probability=arguments.min_probability,
        )
        found, walks = play(loaded, request), play_at_random(facts, request)
        seen, known = edges_of(folder, loaded)
        reachable = steps_to(seen, environment.goal, GraphEnvironment.STEPS)
        starts = environment.starts
        ceiling = float(np.mean(reachable[starts] == environment.distances[starts]))
        rows.append([
            seed, len(starts), share(found, "is_shortest"), share(found, "is_success"),
            share(walks, "is_shortest"), share(walks, "is_success"), ceiling,
        ])  # fmt: skip
        print(" ".join(f"{value:g}" for value in rows[-1]), file=sys.stderr, flush=True)
        for name, episodes in (("random walk", walks), ("model", found)):
            lengths[name] += [len(each.rewards) if each.is_success else 0 for each in episodes]
        lengths["shortest"] += [int(each.shortest or 0) for each in found]
        names = loaded.tokenizer.entries("source")
        for each in found:
            if each.is_success:
                path = (*(int(names[state]) for state in each.states), environment.goal)
                arrived += 1
                stitched += not any(path == walk[at : at + len(path)] for walk in known for at in range(len(walk)))
    columns = ["graph", "starts", "shortest", "reached", "random shortest", "random reached", "ceiling"]
    means = [statistics.mean(row[column] for row in rows) for column in range(1, len(columns))]
    table = [[f"{value:.3f}" if isinstance(value, float) else str(value) for value in row] for row in rows]
    print_table("Shortest paths", columns, [*table, ["mean", *(f"{mean:.3f}" for mean in means)]])
    print(f"shortest paths, model : random walk = {means[1] / means[3]:.2f}")
    print(f"paths to the goal that are no part of a training walk: {stitched / arrived:.3f}")
    counts = [[name, *(f"{of.count(n) / len(of):.3f}" for n in [*range(1, 11), 0])] for name, of in lengths.items()]
    print_table("Shares of lengths (figure 6)", ["", *map(str, range(1, 11)), "never"], counts)


def edges_of(folder: Path, loaded: LoadedModel) -> tuple[np.ndarray, list[tuple[int, ...]]]:
    """Return the edges that occur in the training walks, and the nodes of the walks."""
    train_folder = Run(folder).data / "train"
    states, actions, ends = (np.load(train_folder / f"{name}.npy") for name in ("states", "actions", "ends"))
    nodes = [[int(name) if name.isdigit() else -1 for name in loaded.tokenizer.entries(side)]
             for side in ("source", "target")]  # fmt: skip
    edges = np.zeros((GraphEnvironment.NODES,) * 2, bool)
    begins, walks = [0, *ends[:-1]], []
    for state, action in zip(states, actions, strict=True):
        edges[nodes[0][state], nodes[1][action]] = True
    for begin, end in zip(begins, ends, strict=True):
        walks.append((*(nodes[0][state] for state in states[begin:end]), nodes[1][actions[end - 1]]))
    return edges, walks


def doors(arguments: argparse.Namespace) -> None:
    """Measure Key-to-Door."""
    rows = []
    for episodes in arguments.episodes:
        rates: dict[str, list[float]] = {}
        for arm in arguments.arms:
            for seed in arguments.seeds:
                folder = arguments.work / f"{arguments.recipe}-{episodes}-{arm}-{seed}"
                settings = [f"data.episodes={episodes}", f"data.episodes_seed={seed}", f"training.seed={seed}"]
                loaded = trained(folder, arguments.recipe, [*settings, *ARMS[arm], *arguments.set], arguments.threads)
                request = PlayRequest(episodes=1000, seed=1000 + seed)
                kinds: dict[str, Any] = {arm: request}
                if arm == "dt":
                    kinds |= {
                        "dt, target 0": replace(request, target=0.0),
                        "dt, greedy": replace(request, is_greedy=True),
                    }
                for name, of_kind in kinds.items():
                    rate = outcome_of(play(loaded, of_kind))["success_rate"]
                    rates.setdefault(name, []).append(100 * rate)
                    print(f"{folder.name}: {name} {100 * rate:.1f}", file=sys.stderr, flush=True)
                if arm == arguments.arms[0]:
                    walks = outcome_of(play_at_random(Facts.of(loaded.tokenizer), request))
                    rates.setdefault("random", []).append(100 * walks["success_rate"])
        for name, found in rates.items():
            spread = statistics.stdev(found) if len(found) > 1 else 0.0
            each = ", ".join(f"{rate:.1f}" for rate in found)
            rows.append([str(episodes), name, f"{statistics.mean(found):.1f}", f"{spread:.1f}", each])
    print_table("Success rates, %", ["episodes", "", "mean", "sd", "each seed"], rows)
    (arguments.work / f"{arguments.recipe}.json").write_text(json.dumps(rows), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=["graph", "key-to-door"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--graphs", type=int, default=20)
    parser.add_argument("--prior", type=float, default=10.0)
    parser.add_argument("--min-probability", type=float, default=0.002)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--episodes", type=int, nargs="+", default=[1000, 10_000])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--recipe", default="key-to-door")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    (graphs if arguments.experiment == "graph" else doors)(arguments)


if __name__ == "__main__":
    main()
