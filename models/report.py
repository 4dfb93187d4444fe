"""The reports of the shipped models as pages."""

from collections.abc import Mapping, Sequence
from typing import Any


def report_markdown(report: Mapping[str, Any]) -> str:
    """What was trained, how, and what it can do on held-out problems."""
    lines = _opening(
        report,
        title="The built-in model",
        weights="bf16 weights, for both tasks",
        thread="one thread",
        heldout="the problem (countdown) and of the person (hops)",
    )
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
    return "\n".join([*lines, *_curve(report["training"]["curve"])]) + "\n"


def herds_markdown(report: Mapping[str, Any]) -> str:
    """The same of the model of the task herds."""
    lines = _opening(
        report,
        title="The model of the task herds",
        weights="bf16 weights",
        thread="one thread from the weights of the built-in model",
        heldout="the target and the numbers",
    )
    return "\n".join([*lines, *_curve(report["training"]["curve"])]) + "\n"


def _opening(report: Mapping[str, Any], *, title: str, weights: str, thread: str, heldout: str) -> list[str]:
    """What both pages begin with, the figures of every task included."""
    training, measured = report["training"], report["heldout"]
    lines = [
        f"# {title}",
        "",
        f"{training['parameters']:,} parameters, {report['weights_bytes']:,} bytes of {weights}.",
        (
            f"Trained for {training['cpu_minutes']} CPU-minutes on {thread}: {training['steps']:,} steps, "
            f"{training['episodes']:,} episodes of {training['distinct_problems']:,} distinct problems, "
            f"{training['tokens']:,} tokens."
        ),
        "",
        *(line for note in training.get("notes", ()) for line in (note, "")),
        f"Tokenizer sha256 `{report['tokenizer_sha256']}`.",
        "",
        (
            f"Held out by a hash of {heldout}; {measured['samples']} samples a "
            f"problem at temperature {measured['temperature']}, seed {measured['seed']}."
        ),
        "",
    ]
    for task, figures in measured["tasks"].items():
        lines += [f"## {task}", "", *_table(figures), ""]
    return lines


def _curve(curve: Sequence[Mapping[str, float]]) -> list[str]:
    points = curve[:: max(1, len(curve) // 20)]
    return [
        "## Training",
        "",
        "| step | CPU-minutes | training loss |",
        "|---|---|---|",
        *(f"| {point['step']} | {point['cpu_minutes']} | {point['loss']} |" for point in points),
    ]


def _table(figures: Mapping[str, Mapping[str, float]]) -> list[str]:
    labels = list(figures)
    return [
        "| | " + " | ".join(labels) + " |",
        "|---|" + "---|" * len(labels),
        *(f"| {key} | " + " | ".join(f"{figures[label][key]}" for label in labels) + " |" for key in figures["all"]),
    ]
