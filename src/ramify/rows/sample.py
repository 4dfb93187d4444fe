"""Sample: one example in slime's terms (THUDM/slime slime/utils/types.py), converted to and from plain dictionaries.

Tokens are the prompt's, then the response's. Everything from the first token that could be trained on belongs to the
response, so observations lie inside it with mask 0. Samples are mutable, because rollout functions fill them in.
Invariant, checked when a sample is built, and again by `check` when it is trained: `len(loss_mask) ==
len(rollout_log_probs) == response_length <= len(tokens)`, for the fields that are present.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, ClassVar

from ramify.core.errors import ContractError, ExportError, nearest


class SampleStatus(StrEnum):
    """The state of a sample; equal to its word."""

    PENDING = "pending"
    COMPLETED = "completed"
    TRUNCATED = "truncated"
    ABORTED = "aborted"
    FAILED = "failed"


@dataclass(kw_only=True)
class Sample:
    """One example. None = not present. A field that a dictionary lacks gets slime's default. Keys of a dictionary that
    are no fields become attributes, and `to_dict` returns them unchanged."""

    Status: ClassVar[type[SampleStatus]] = SampleStatus

    status: SampleStatus = SampleStatus.PENDING
    index: int | None = None
    group_index: int | None = None
    """Number of the group whose rewards are compared."""
    rollout_id: int | None = None
    """Samples of one rollout share it; the loss is averaged per rollout."""
    prompt: str | Sequence[Mapping[str, Any]] = ""
    """As text or messages; for people only."""
    tokens: Sequence[int] = field(default_factory=list[int])
    """(T,) prompt and response."""
    response: str = ""
    response_length: int = 0
    """R."""
    label: str | None = None
    reward: float | Mapping[str, Any] | None = None
    """A mapping if the reward has parts; a reward key then says which part is trained."""
    loss_mask: Sequence[int] | None = None
    """(R,) 1 = trained; None = all tokens are trained."""
    weight_versions: Sequence[str] = field(default_factory=list[str])
    rollout_log_probs: Sequence[float] | None = None
    """(R,) logprobs of the sampled tokens, 0.0 elsewhere."""
    teacher_log_probs: Sequence[float] | None = None
    """(R,)"""
    remove_sample: bool = False
    """Keeps its place in the batch, with a mask of zeros."""
    metadata: Mapping[str, Any] = field(default_factory=dict[str, Any])
    train_metadata: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise `ExportError` for a sample that breaks an invariant. Converts a status given as a plain word."""
        try:
            self.status = SampleStatus(getattr(self.status, "value", self.status))
        except ValueError:
            known = [status.value for status in SampleStatus]
            raise ExportError(f"{self._name} has status {self.status!r}; {nearest(str(self.status), known)}") from None
        if not 0 <= self.response_length <= len(self.tokens):
            raise ExportError(f"{self._name}: response_length {self.response_length} of {len(self.tokens)} tokens")
        lengths = {"loss_mask": self.loss_mask, "rollout_log_probs": self.rollout_log_probs}
        for name, values in {**lengths, "teacher_log_probs": self.teacher_log_probs}.items():
            if values is not None and len(values) != self.response_length:
                raise ExportError(
                    f"{self._name}: {name} has length {len(values)}, response_length is {self.response_length}"
                )
        if unknown := set(self.loss_mask or ()) - {0, 1}:
            raise ExportError(f"{self._name}: loss_mask holds {sorted(unknown)[:3]}; it is 0 or 1 for each token")

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Sample":
        """A sample from its dictionary. Raises `ExportError` if the sample breaks an invariant, or if a key is the name
        of a method."""
        names = {f.name for f in fields(cls)}
        if taken := [name for name in data if name not in names and name in dir(cls)]:
            raise ExportError(f"a sample has the key {taken[0]!r}, which is no field and which a sample needs itself")
        sample = cls(**{name: value for name, value in data.items() if name in names})
        vars(sample).update({name: value for name, value in data.items() if name not in names})
        return sample

    def to_dict(self) -> dict[str, Any]:
        """A dictionary that slime's `Sample.from_dict` and our `from_dict` can read. Equal samples give equal
        dictionaries."""
        return {**vars(self), "status": SampleStatus(self.status).value}

    def mask(self) -> list[int]:
        """(R,) the loss mask; all ones if there is none, all zeros if the sample is removed."""
        if self.remove_sample:
            return [0] * self.response_length
        return [1] * self.response_length if self.loss_mask is None else list(self.loss_mask)

    def reward_value(self, reward_key: str | None = None) -> float:
        """The reward that is trained. Raises `ExportError` if there is none, or none under that key."""
        value = self.reward.get(reward_key or "") if isinstance(self.reward, Mapping) else self.reward
        if value is None or isinstance(self.reward, Mapping) != (reward_key is not None):
            known = sorted(self.reward) if isinstance(self.reward, Mapping) else None
            said = f"it has the parts {known}" if known else f"it is {self.reward!r}"
            raise ExportError(f"{self._name} has no reward under the reward key {reward_key!r}; {said}")
        return float(value)

    @property
    def _name(self) -> str:
        return f"sample {self.index}"


def sample_of(each: Any) -> Sample:
    """A sample of ours, made from a sample of ours or of another class with `to_dict`, such as slime's. Raises
    `ContractError` for anything else, `ExportError` if the sample breaks an invariant."""
    if isinstance(each, Sample):
        return each
    written = each.to_dict() if callable(getattr(each, "to_dict", None)) else None
    if not isinstance(written, Mapping):
        raise ContractError(f"a sample is wanted, got {each!r:.200}")
    return Sample.from_dict(written)
