# pyright: reportMissingImports=false
# torch and transformers are not part of the development set-up; `engines.local` says how to get them.
"""Model folder: a Hugging Face model on disk, and whether an engine with slots can run it.

Reads `config.json` and the weights; never runs code from the folder. From the configuration alone, it rejects layers
whose state is not the keys and values of every position, because only such a state can be forked at any token.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging as hub_logging

from ramify.core.errors import ConfigError

SERVE_IT: Final = "serve this model and use its HTTP API"

_FULL: Final = {"full_attention", "attention", "global"}
_WINDOWS: Final = {
    "sliding_attention": "sliding_window",
    "chunked_attention": "attention_chunk_size",
    "local": "window_size",
}
"""Kind of layer -> the setting that says how many positions it sees."""


class ModelFolder:
    """The folder of a causal language model. Raises `ConfigError` before reading weights if the model cannot run."""

    def __init__(self, path: str | Path, context_length: int | None = None) -> None:
        """Read the configuration. `context_length` None = the model's own, which is also its upper limit."""
        self.path = Path(path)
        self._config = _config(self.path)
        text = self._config.get_text_config(decoder=True)
        most: int | None = getattr(text, "max_position_embeddings", None)
        if context_length is None and most is None:
            raise ConfigError(f"config.json in {self} has no max_position_embeddings; set the engine's context_length")
        self.context_length: int = min(length for length in (context_length, most) if length is not None)
        self.vocab_size: int = text.vocab_size
        self._refuse_layers(_layer_kinds(text), text)
        self._refuse_positions(text)

    def __str__(self) -> str:
        return repr(str(self.path))

    def network(self, dtype: str) -> Any:
        """The model, ready to compute. Raises `ConfigError` if weights are missing or do not fit."""
        if not any(self.path.glob("*.safetensors")) and not any(self.path.glob("pytorch_model*.bin")):
            raise ConfigError(f"no weights in {self}: model.safetensors is missing")
        try:
            with _quiet():
                network, report = AutoModelForCausalLM.from_pretrained(
                    self.path,
                    dtype=dtype,
                    local_files_only=True,
                    trust_remote_code=False,
                    ignore_mismatched_sizes=True,  # reported and refused below, by name
                    output_loading_info=True,
                )
        except Exception as error:  # boundary: whatever a model class or a damaged file raises
            raise ConfigError(f"weights in {self} cannot be read: {first_line(error)}") from error
        for kind, problem in (("missing_keys", "is missing"), ("mismatched_keys", "has another shape")):
            for key in sorted(report[kind]):
                name = key if isinstance(key, str) else key[0]
                raise ConfigError(f"weights in {self} do not fit config.json: {name!r} {problem}")
        return network.eval().requires_grad_(False)

    def _refuse_layers(self, kinds: Sequence[str], text: Any) -> None:
        for index, kind in enumerate(kinds):
            if kind in _FULL:
                continue
            window = getattr(text, _WINDOWS.get(kind, ""), None)
            if window is None:
                raise ConfigError(
                    f"{self} has layer {index}: {kind}; engine 'local' runs attention over all positions only, "
                    f"whose keys and values can be forked at any token; {SERVE_IT}"
                )
            self._refuse_beyond(window, f"layer {index}: {kind}, a window of {window} tokens")

    def _refuse_positions(self, text: Any) -> None:
        """Reject rotations that change for every row once one row is long: a row would then depend on the rows beside
        it."""
        rope = getattr(text, "rope_parameters", None) or {}
        if rope.get("rope_type") == "longrope":
            most = rope["original_max_position_embeddings"]
            self._refuse_beyond(most, f"rope_type 'longrope', which turns all rows anew beyond {most} tokens")

    def _refuse_beyond(self, most: int, what: str) -> None:
        if most < self.context_length:
            raise ConfigError(
                f"{self} has {what}, in a context of {self.context_length}; "
                f"set the engine's context_length to {most} or less, or {SERVE_IT}"
            )


def _config(path: Path) -> Any:
    if not path.is_dir():
        raise ConfigError(f"there is no folder {str(path)!r}; engine 'local' runs a model's folder on this machine")
    if not (path / "config.json").is_file():
        raise ConfigError(f"no model in {str(path)!r}: config.json is missing")
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # boundary: whatever a configuration class raises
        raise ConfigError(f"{str(path / 'config.json')!r} cannot be read: {first_line(error)}") from error


def _layer_kinds(text: Any) -> Sequence[str]:
    """The kind of each layer, in the words of transformers, if the configuration lists them; otherwise one kind for
    all."""
    kinds = getattr(text, "layer_types", None) or getattr(text, "attention_layers", None)
    if not kinds:
        is_sliding = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
        is_chunked = getattr(text, "attention_chunk_size", None)
        kinds = ["sliding_attention" if is_sliding else "chunked_attention" if is_chunked else "full_attention"]
    return [text.model_type] if _FULL.issuperset(kinds) and _is_recurrent(text) else kinds


def _is_recurrent(text: Any) -> bool:
    """Whether the model's class says that it keeps a state of its own."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(text), ())
    return any(getattr(each, "_is_stateful", False) for each in (found if isinstance(found, tuple) else (found,)))


@contextmanager
def _quiet() -> Iterator[None]:
    """Turn off the progress bar and the logs of transformers meanwhile: problems that matter become errors here."""
    is_shown, verbosity = hub_logging.is_progress_bar_enabled(), hub_logging.get_verbosity()
    hub_logging.disable_progress_bar()
    hub_logging.set_verbosity_error()
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)
        if is_shown:
            hub_logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """An exception's class name and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
