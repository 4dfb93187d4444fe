"""The report of a built-in model as a page."""

from collections.abc import Mapping
from typing import Any


def report_markdown(report: Mapping[str, Any]) -> str:
    """What was trained, how, and what it can do on held-out problems."""
    training, heldout = report["training"], report["heldout"]
    lines = [
        "# The built-in model",
        "",
        f"{training['parameters']:,} parameters, {report['weights_bytes']:,} bytes of bf16 weights, for both tasks.",
        (
            f"Trained for {training['cpu_minutes']} CPU-minutes on one thread: {training['steps']:,} steps, "
            f"{training['episodes']:,} episodes of {training['distinct_problems']:,} distinct problems, "
            f"{training['tokens']:,} tokens."
        ),
        "",
        *(line for note in training.get("notes", ()) for line in (note, "")),
        f"Tokenizer sha256 `{report['tokenizer_sha256']}`.",
        "",
        (
            f"Held out by a hash of the problem (countdown) and of the person (hops); {heldout['samples']} samples a "
            f"problem at temperature {heldout['temperature']}, seed {heldout['seed']}."
        ),
        "",
    ]
    for task, figures in heldout["tasks"].items():
        lines += [f"## {task}", "", *_table(figures), ""]
    lines += [
        "## Refining its own attempts at countdown",
        "",
        "One critique, grade and rewrite of each attempt, held-out problems, temperature 1.",
        "",
        "| | |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in report["refinement"].items()),
        "",
    ]
    curve = training["curve"]
    lines += ["## Training", "", "| step | CPU-minutes | training loss |", "|---|---|---|"]
    lines += [
        f"| {point['step']} | {point['cpu_minutes']} | {point['loss']} |"
        for point in curve[:: max(1, len(curve) // 20)]
    ]
    return "\n".join(lines) + "\n"


def _table(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    labels = list(figures)
    return [
        "| | " + " | ".join(labels) + " |",
        "|---|" + "---|" * len(labels),
        *(f"| {key} | " + " | ".join(f"{figures[label][key]}" for label in labels) + " |" for key in figures["all"]),
    ]
