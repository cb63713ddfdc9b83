"""Write docs/architectures.md: every architecture of transformers' auto classes, built tiny, run, measured and held against the laws.

About ten minutes, and an hour more for the laws.

    python docs/architectures.py [TYPE ...]      # with types: print their lines and write nothing
    python docs/architectures.py --resume        # go on where an earlier run of this script ended

Each type is built with `config: {model_type: TYPE, tiny: true}`, fed what its main input is, and asked for the error of its kernel
against exact rows and for the sums of its rows. Then it is held against the laws of models that follow from its class and
configuration. A process runs a few types and is replaced where one kills it.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TARGET = HERE / "architectures.md"
KEPT = HERE.parent / ".attncheck" / "architectures.jsonl"
CLASSES = {
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES": "causal LM",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "masked LM",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES": "seq2seq",
    "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES": "vision",
    "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES": "audio",
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES": "speech",
    "MODEL_MAPPING_NAMES": "other",
}
AT_ONCE = 12
SECONDS = 90
"""For one type."""
LAWS = 45
"""Seconds of these for its laws."""
CLAIMS: dict[str, dict[str, Any]] = {
    # it reads its prompt in both directions, and keeps room for learned tokens in front of it
    "cpmant": {"causal": None, "cache": None, "padding": None},
}
"""Of types whose design no field of the configuration tells."""
STRONGER = 4
"""Matrices are enlarged by so much before the laws, as attention of fresh weights is uniform and hides what it should show."""
EXACT = 1e-4
"""Of kernel against exact rows, in float32 on random weights."""
OUTCOMES = ("observed", "differs", "refused", "error", "not run", "not built")
NO_CALL = "no attention call was seen"
SHOWN = 180
"""Letters of a reason in the table."""
REQUESTS: list[Any] = ["kernel.error", "attention.row_sum"]


def types() -> dict[str, str]:
    """Model type -> the first kind of auto class that knows it."""
    from transformers import CONFIG_MAPPING
    from transformers.models.auto import modeling_auto

    found: dict[str, str] = {}
    for mapping, kind in CLASSES.items():
        for name in getattr(modeling_auto, mapping):
            if name in CONFIG_MAPPING:
                found.setdefault(name, kind)
    return dict(sorted(found.items()))


def candidates(model: Any, subject: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """What a forward may take, and in words, likeliest first; the first with which it runs is taken."""
    import torch

    from attncheck.core.definitions import InputDefinition
    from attncheck.core.errors import AttncheckError
    from attncheck.inputs import build
    from attncheck.subjects.encoders import forward_parameters

    known = frozenset(forward_parameters(model))
    config = model.config
    decoder = {"decoder_input_ids": torch.tensor([[1, 2, 3, 4, 5, 6]])} if config.is_encoder_decoder else {}
    text: dict[str, Any] = {}
    for length in (24, 12):
        with contextlib.suppress(AttncheckError):
            setting = {"device": "cpu", "dtype": "float32", "root": HERE, "forward_parameters": known}
            definition = InputDefinition("random", "tokens", {"ids": "random"}, length=length, batch=2)
            text = dict(build(definition, subject.encoder, **setting).arguments)
            break
    if text:
        yield text, "ids"
        size = len(text["input_ids"][0])
        yield {**text, "bbox": torch.zeros(2, size, 4, dtype=torch.long)}, "ids and boxes"
    vision = getattr(config, "vision_config", config)
    height, width = _pair(getattr(vision, "image_size", None) or 64)
    channels = getattr(vision, "num_channels", None) or 3
    for main in ("pixel_values", "pixel_values_videos", getattr(model, "main_input_name", "pixel_values")):
        if main not in known or main.startswith("input_"):
            continue
        frames = getattr(vision, "num_frames", None) or 2
        for shape, words in (((1, channels, height, width), "pixels"), ((1, frames, channels, height, width), "frames")):
            pixels = {main: torch.randn(*shape)}
            yield {**pixels, **decoder}, words
            for ids in [text] if text else []:
                yield {**{name: value[:1] for name, value in ids.items()}, **pixels}, f"ids and {words}"
    if "input_values" in known:
        for sound in ((1, 8000), (1, 1, 8000), (1, 1, 7680)):
            yield {"input_values": torch.randn(*sound), **decoder}, "sound"
    if "input_features" in known:
        part = getattr(config, "encoder_config", None) or getattr(config, "audio_config", None) or config
        names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "feature_projection_input_dim", "input_dim", "n_mels")
        bins = next((getattr(part, name) for name in names if isinstance(getattr(part, name, None), int)), 80)
        for features in ((1, 96, bins), (1, bins, 96), (1, bins, 2 * getattr(part, "max_source_positions", 1500))):
            yield {"input_features": torch.randn(*features), **decoder}, "features"
            hint = {"input_features_mask": torch.ones(1, max(features[1:]), dtype=torch.long)}
            if "input_features_mask" in known:
                yield {"input_features": torch.randn(*features), **hint, **decoder}, "features"


def _pair(size: Any) -> tuple[int, int]:
    return (size[0], size[-1]) if isinstance(size, (list, tuple)) else (size, size)


def arguments(model: Any, subject: Any) -> tuple[dict[str, Any], str]:
    """The first that runs. Raises what the first of all raised where none does."""
    import torch

    refused: Exception = ValueError(f"nothing is known to feed it: its main input is {getattr(model, 'main_input_name', '?')}")
    first = True
    for given, words in candidates(model, subject):
        try:
            with torch.no_grad():
                model(**given)
        except Exception as error:
            refused = error if first else refused
            first = False
            continue
        return given, words
    raise refused


def one(name: str, kind: str) -> dict[str, Any]:
    """Build and measure one type."""
    import torch

    from attncheck import observe
    from attncheck.core.definitions import SubjectDefinition
    from attncheck.core.errors import AttncheckError, NotObservable
    from attncheck.engine.vocabulary import vocabulary
    from attncheck.subjects import load

    vocabulary()
    said: dict[str, Any] = {"type": name, "kind": kind}
    try:
        subject = load(SubjectDefinition(name, "config", {"model_type": name, "tiny": True}), root=HERE)
    except AttncheckError as error:
        return {**said, "outcome": "not built", "why": short(error)}
    model = subject.model
    said |= {"class": type(model).__name__, "parameters": sum(p.numel() for p in model.parameters())}
    try:
        torch.manual_seed(0)
        given, said["fed"] = arguments(model, subject)
    except Exception as error:
        return {**said, "outcome": "not run", "why": short(f"{type(error).__name__}: {error}")}
    try:
        found = observe(model, given, REQUESTS)
    except NotObservable as error:
        return {**said, "outcome": "refused", "why": short(error)}
    except AttncheckError as error:
        return {**said, "outcome": "error", "why": short(error)}
    errors = found["kernel.error"]
    worst = float(errors.max())
    sums = found["attention.row_sum"]
    said |= {"layers": int(errors.sizes.get("layer", 1)), "kernel_error": worst, "row_sum": [float(sums.min()), float(sums.max())]}
    said["laws"] = laws(model)
    return {**said, "outcome": "observed" if worst <= EXACT else "differs"}


def laws(model: Any) -> dict[str, Any]:
    """How many laws applied, how many the budget left out, which are broken and how; or why none could be tried."""
    import torch

    from attncheck import verify_model
    from attncheck.core.errors import AttncheckError

    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.requires_grad:
                parameter.mul_(STRONGER)
    try:
        report = verify_model(model, CLAIMS.get(model.config.model_type), budget=LAWS, examples=0)
    except AttncheckError as error:
        return {"why": short(error)}
    found = {law: next(line for line in text.splitlines() if line.startswith("  found: "))[9:] for law, text, _ in report.violations}
    late = sum("budget" in why for _, why in report.skipped)
    return {"ran": len(report.ran), "of": len(report.outcomes), "late": late, "broken": {law: short(text) for law, text in found.items()}}


def short(text: object) -> str:
    return " ".join(str(text).split())[:400]


def chunk(names: list[str]) -> None:
    """In a process of its own: a line of JSON for each."""
    import signal
    import warnings

    import torch
    import transformers

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)

    def late(*_: Any) -> None:
        raise TimeoutError(f"took more than {SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    known = types()
    for name in names:
        signal.alarm(SECONDS)
        try:
            told = one(name, known[name])
        except BaseException as error:
            told = {"type": name, "kind": known[name], "outcome": "error", "why": short(f"{type(error).__name__}: {error}")}
        finally:
            signal.alarm(0)
        print("JSON " + json.dumps(told), flush=True)


def sweep(names: list[str], kept: Path | None = None) -> list[dict[str, Any]]:
    """All of them, a few to a process; what a dying process leaves undone goes on in the next. `kept` has what is done already, a line
    of JSON each, and gets what is done now."""
    before = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()] if kept is not None and kept.exists() else []
    told = [line for line in before if line["type"] in names]
    left = [name for name in names if name not in {line["type"] for line in told}]
    while left:
        batch = left[:AT_ONCE]
        done = subprocess.run([sys.executable, __file__, "--chunk", *batch], capture_output=True, text=True, check=False)
        lines = [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("JSON ")]
        if len(lines) < len(batch):
            died = batch[len(lines)]
            lines.append({"type": died, "kind": types()[died], "outcome": "error", "why": f"the process ended with {done.returncode}"})
        told += lines
        if kept is not None:
            with kept.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
        left = left[len(lines) :]
        print(f"{len(told)} of {len(names)}", file=sys.stderr, flush=True)
    return told


def page(told: list[dict[str, Any]]) -> Iterator[str]:
    """docs/architectures.md."""
    from attncheck.engine.results import versions

    of = {outcome: [line for line in told if line["outcome"] == outcome] for outcome in OUTCOMES}
    attends = [line for line in of["refused"] if not line["why"].startswith(NO_CALL) or "look like attention" in line["why"]]
    seen = len(of["observed"])
    tried = [line for line in of["observed"] + of["differs"] if "ran" in line["laws"]]
    broken = [(line["type"], law, text) for line in tried for law, text in line["laws"]["broken"].items()]
    libraries = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("torch", "transformers"))
    yield f"""# Architectures

Written by `python docs/architectures.py` under {libraries}: every model type of the auto classes for causal, masked and
sequence-to-sequence language models, images, audio, speech and base models, built by `config: {{model_type: TYPE, tiny: true}}` with
random weights in float32, run once on a CPU, and asked for `kernel.error` and `attention.row_sum`.

| | model types |
|---|---|
| asked for | {len(told)} |
| observed, all attention that ran, each layer | {seen} |
| ... of these with a kernel further than {EXACT:g} from exact rows | {len(of["differs"])} |
| refused: attention of a kind that is not read | {len(attends)} |
| refused: no attention ran | {len(of["refused"]) - len(attends)} |
| not run: this script has no input for it, or the tiny model takes none | {len(of["not run"])} |
| not built: a package is missing, or the type's own defaults do not build | {len(of["not built"])} |
| held against the [laws of models](laws.md) that follow from class and configuration alone | {len(tried)} |
| ... laws that applied, over all types | {sum(line["laws"]["ran"] for line in tried)} |
| ... broken | {len(broken)}, in {len({name for name, _, _ in broken})} types |

Of the {seen + len(attends)} that ran attention, {100 * seen / max(seen + len(attends), 1):.1f}% are observed. The rest are an ERROR that
names the modules: none passes on part of its layers.

## Observed

Layers are attention calls, encoder, decoder and cross attention each its own. The row sums are those of the kernel: below 1 where the
architecture has sinks or gates, or drops rows that see nothing. Laws are those that applied, of all; a dash says that the laws have no
input for the type.

| type | class | million parameters | fed | layers | kernel.error | row sums | laws | broken |
|---|---|---|---|---|---|---|---|---|"""
    for line in of["observed"] + of["differs"]:
        low, high = line["row_sum"]
        sums = "1" if max(abs(low - 1), abs(high - 1)) < 1e-5 else f"{low:.3g} to {high:.3g}"
        yield (
            f"| {line['type']} | {line['class']} | {line['parameters'] / 1e6:.2g} | {line['fed']} | {line['layers']} | "
            f"{line['kernel_error']:.1g} | {sums} | {_applied(line['laws'])} | {', '.join(line['laws'].get('broken', ()))} |"
        )
    if broken:
        yield "\n## Laws that are broken\n\nEach was looked at; [findings](findings/README.md) has the faults that lie behind them.\n"
        yield "| type | law | found |\n|---|---|---|"
        yield from (f"| {name} | {law} | {cell(text)} |" for name, law, text in broken)
    for title, lines in (
        ("Refused: attention of a kind that is not read", attends),
        ("Refused: no attention ran", [line for line in of["refused"] if line not in attends]),
        ("Errors", of["error"]),
        ("Not run", of["not run"]),
        ("Not built", of["not built"]),
    ):
        if lines:
            yield f"\n## {title}\n\n| type | why |\n|---|---|"
            yield from (f"| {line['type']} | {cell(line['why'])} |" for line in lines)


def _applied(told: dict[str, Any]) -> str:
    return "-" if "ran" not in told else f"{told['ran']} of {told['of']}" + (f", {told['late']} out of time" if told["late"] else "")


def cell(text: str) -> str:
    """Short, and without what would end a cell of the table."""
    return (text if len(text) <= SHOWN else text[: SHOWN - 3] + "...").replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--chunk"]:
        chunk(sys.argv[2:])
    elif sys.argv[1:] not in ([], ["--resume"]):
        for line in sweep(sys.argv[1:]):
            print(json.dumps(line))
    else:
        KEPT.parent.mkdir(exist_ok=True)
        if not sys.argv[1:]:
            KEPT.unlink(missing_ok=True)
        order = list(types())
        found = sorted(sweep(order, KEPT), key=lambda line: order.index(line["type"]))
        TARGET.write_text("\n".join(page(found)) + "\n", encoding="utf-8")
        print(Counter((line["kind"], line["outcome"]) for line in found), file=sys.stderr)
