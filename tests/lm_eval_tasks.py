"""Tasks of lm-eval's form over a local JSONL file, one of each output type."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PLACES = (
    "France Paris, Japan Tokyo, Italy Rome, Spain Madrid, Egypt Cairo, Peru Lima, Cuba Havana, "
    "Iran Tehran, Iraq Baghdad, Kenya Nairobi, Nepal Kathmandu, Norway Oslo, Poland Warsaw, "
    "Russia Moscow, Greece Athens, Turkey Ankara, Sweden Stockholm, Austria Vienna, China Beijing, "
    "Canada Ottawa, Chile Santiago, Ghana Accra, Cyprus Nicosia, Malta Valletta, Qatar Doha, "
    "Oman Muscat, Jordan Amman, Syria Damascus, Libya Tripoli, Senegal Dakar, Angola Luanda, "
    "Fiji Suva, Tonga Nukualofa, Samoa Apia, Bhutan Thimphu, Mongolia Ulaanbaatar, Laos Vientiane, "
    "Estonia Tallinn, Latvia Riga, Ireland Dublin"
)
BASE = {
    "dataset_path": "json",
    "test_split": "test",
    "fewshot_split": "train",
    "num_fewshot": 2,
    "metadata": {"version": 1.0},
}
CHOICE = {
    "task": "own_choice",
    "output_type": "multiple_choice",
    "doc_to_text": "What is the capital of {{place}}?\nAnswer:",
    "doc_to_choice": "options",
    "doc_to_target": "right",
    "metric_list": [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True}
        for metric in ("acc", "acc_norm")
    ],
}
ANSWER = {
    "task": "own_answer",
    "output_type": "loglikelihood",
    "doc_to_text": "The capital of {{place}} is",
    "doc_to_target": "{{' ' + options[right]}}",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
}
WRITE = {
    "task": "own_write",
    "output_type": "generate_until",
    "doc_to_text": "Q: What is the capital of {{place}}?\nA:",
    "doc_to_target": "{{options[right]}}",
    "generation_kwargs": {"until": ["\n", "."], "do_sample": False, "max_gen_toks": 6},
    "metric_list": [
        {
            "metric": "exact_match",
            "aggregation": "mean",
            "higher_is_better": True,
            "ignore_case": True,
        }
    ],
    "filter_list": [
        {
            "name": "first-word",
            "filter": [
                {"function": "regex", "regex_pattern": "([a-z]+)"},
                {"function": "take_first"},
            ],
        },
        {"name": "whole", "filter": [{"function": "take_first"}]},
    ],
}


def write_data(folder: Path) -> dict[str, str]:
    """The rows, divided into train and test: four options each, of different lengths."""
    pairs = [pair.split(" ") for pair in PLACES.split(", ")]
    rows = []
    for at, (place, capital) in enumerate(pairs):
        others = [pairs[(at + step) % len(pairs)][1] for step in (3, 11, 23)]
        options = others[: at % 4] + [capital] + others[at % 4 :]
        rows.append({"place": place, "options": options, "right": at % 4})
    files = {}
    for name, part in (("train", rows[:4]), ("test", rows[4:])):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
        files[name] = str(file)
    return files


def write_task(folder: Path, task: dict[str, Any], **changes: Any) -> Path:
    """One task's YAML; data in the same folder."""
    folder.mkdir(exist_ok=True)
    whole = {**BASE, "dataset_kwargs": {"data_files": write_data(folder)}, **task, **changes}
    file = folder / f"{whole['task']}.yaml"
    file.write_text(json.dumps(whole), encoding="utf-8")  # which is YAML too
    return file
