"""Records: what a run writes down.

Names on disk: `header opened asked grown outcome closed sealed`. A replay of a tree needs only its records in order:
`opened`; then `asked` (an ask of the strategy), `grown` (a complete step of a command) and `outcome` (a command was
delivered: put on the tree and told to the strategy); then `closed`. Between them, a rollout service writes `handed
dropped updated marked`: what happened to its trees, and which weights it used next; and a run that goes on with other
inputs writes `accepted`. A problem's secret is never
recorded. Records are plain data; `recording` converts them from and to the values of the core.
"""

import math
from typing import Any, Literal

import msgspec

from ramify.core.command import Edge, Role
from ramify.core.errors import StoreError
from ramify.core.segment import FinishKind, LogprobKind, Origin, PathEnd, ToolStatus
from ramify.store.packing import Number

FORMAT = 1
"""Version of the records and of the journal's files. Reading a store of another version raises an error."""

Counters = dict[str, int]
Spent = dict[str, Counters]
"""Role -> what was spent. The store does not interpret it."""


class JournalValue(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of a record. Fields with their default value are left out on disk."""


class SourceValue(JournalValue, frozen=True):
    """What sampled a segment: the engine, and how."""

    engine: str
    temperature: Number
    top_p: Number
    top_k: int
    logprobs: LogprobKind | None = None


class FinishValue(JournalValue, frozen=True):
    """Why a generation ended; `matched` is the stop word."""

    kind: FinishKind
    matched: str | None = None


class UsageValue(JournalValue, frozen=True):
    """What the generations of a step used: calls, tokens and picodollars."""

    num_calls: int = 0
    num_billed: int = 0
    num_cached: int = 0
    num_prefilled: int = 0
    picodollars: int = 0


class ToolCallValue(JournalValue, frozen=True):
    """One tool call and its result."""

    tool: str
    arguments: str
    status: ToolStatus = "ok"
    result: str = ""
    duration_s: Number = 0.0
    num_retries: int = 0
    metadata: dict[str, Any] = {}
    attachments: tuple[str, ...] = ()
    seed: int | None = None
    reward: Number | None = None
    end: PathEnd | None = None
    parts: dict[str, Number] = {}


class SegmentValue(JournalValue, frozen=True):
    """A segment: ids as packed int32, logprobs and measures as packed float32, all little-endian, base64 on disk."""

    origin: Origin
    ids: bytes
    logprobs: bytes | None = None
    measures: dict[str, bytes] = {}
    source: SourceValue | None = None
    version: int | None = None
    finish: FinishValue | None = None
    seed: int | None = None
    usage: UsageValue = UsageValue()
    message: dict[str, Any] | None = None
    tool_call: ToolCallValue | None = None
    attachments: tuple[str, ...] = ()


class ScoreValue(JournalValue, frozen=True):
    """What a judge said of one node."""

    judge: str
    value: Number | None
    parts: tuple[tuple[str, Number], ...] = ()
    attempt: int = 0
    is_oracle: bool = False
    is_of_step: bool = False


class StepValue(JournalValue, frozen=True):
    """One complete step: its segments, how it ended, and its scores."""

    segments: tuple[SegmentValue, ...]
    stop: str | None = None
    action: str = "policy"
    edge: Edge = "continues"
    role: Role = "policy"
    measures: dict[str, Number] = {}
    scores: tuple[ScoreValue, ...] = ()
    notes: dict[str, Any] = {}


class CandidateValue(JournalValue, frozen=True):
    """One node that a strategy considered, with its score and the terms of it."""

    node: int
    score: Number
    terms: tuple[tuple[str, Number], ...] = ()


class ForkValue(JournalValue, frozen=True):
    """Why siblings were grown: the rule, the shares and the probability of the fork."""

    num_siblings: int
    rule: str
    shares: tuple[Number, ...] = ()
    probability: Number | None = None
    score: Number | None = None
    select_prob: Number | None = None


class GrowValue(JournalValue, frozen=True, tag="grow", tag_field="command"):
    """The command `Grow`: continue from a node."""

    node: int
    at: int | None = None
    until: int | Literal["step", "end"] = "end"
    """A number is a number of tokens."""
    action: str = "policy"
    fork: ForkValue | int | None = None
    why: tuple[CandidateValue, ...] = ()


class JudgeValue(JournalValue, frozen=True, tag="judge", tag_field="command"):
    """The command `Judge`: have nodes scored."""

    nodes: tuple[int, ...]
    judge: str
    attempt: int = 0
    why: tuple[CandidateValue, ...] = ()


class CloseValue(JournalValue, frozen=True, tag="close", tag_field="command"):
    """The command `Close`: end a path."""

    node: int
    reason: str
    why: tuple[CandidateValue, ...] = ()
    stop: Literal["closed", "roulette"] = "closed"


class CancelValue(JournalValue, frozen=True, tag="cancel", tag_field="command"):
    """The command `Cancel`: stop an earlier command."""

    command_id: int


CommandValue = GrowValue | JudgeValue | CloseValue | CancelValue


class DoneValue(JournalValue, frozen=True, tag="done", tag_field="ending"):
    """A Grow, Close or Cancel was carried out."""


class ScoredValue(JournalValue, frozen=True, tag="scored", tag_field="ending"):
    """A Judge was carried out."""

    scores: tuple[ScoreValue, ...]


class FailureValue(JournalValue, frozen=True, tag="failed", tag_field="ending"):
    """A command failed."""

    reason: str
    is_retryable: bool = False


EndingValue = DoneValue | ScoredValue | FailureValue


# -- records ----------------------------------------------------------------------------------------------------------


class WeightsValue(JournalValue, frozen=True):
    """The tokenizer of one engine of the run."""

    engine: str
    codec: str
    codec_sha256: str


class ShardValue(JournalValue, frozen=True):
    """The part of a sharded run that wrote a file: its index, and the number of parts."""

    index: int
    count: int


class ReadingValue(JournalValue, frozen=True):
    """What the parts of a run decide about reading it, so that it is read without loading them."""

    format: str
    """Class of the format, for people."""
    stops: tuple[str, ...] = ()
    """Stop words, which a fork must not cut."""
    judges: tuple[str, ...] = ()
    """Actions of judges with their own tokenizer, in the order of `weights` behind the first."""
    is_text: bool = False
    """Whether the policy's ids only carry text, so that no rows of tokens can be made."""
    post_hoc_reasons: tuple[str, ...] = ()
    has_post_hoc_rule: bool = False
    """Whether the strategy can say where it would fork any finished path."""
    planned_leaves: float | None = None
    """Leaves that the strategy plans for a tree; None = it does not say."""


class InputsValue(JournalValue, frozen=True):
    """Digests of what a run reads besides its configuration. `runner/inputs.py` makes and compares them."""

    problems: str = ""
    """Of ids, questions and public columns, in order."""
    secrets: str = ""
    """Of all gold answers together, keyed; empty = there are none, or no key."""
    weights: dict[str, str] = {}
    """Folder of a local model -> digest."""
    plugins: dict[str, str] = {}
    """File -> digest."""


class Header(JournalValue, frozen=True, tag="header", tag_field="record"):
    """First record of every file of a journal; it identifies the run."""

    library: str
    """Version of ramify that began the run."""
    config_hash: str
    """SHA-256 of the resolved configuration's text."""
    weights: tuple[WeightsValue, ...]
    """The policy's, then those of judges' actions with their own tokenizer, by name."""
    seed: int
    delivery: str
    isolation: str
    """How tools were isolated from the machine; one word."""
    created: float
    """Unix time, for information only."""
    format: int = msgspec.field(default_factory=lambda: FORMAT)
    """A factory, because a plain default would be left out on disk."""
    shard: ShardValue | None = None
    """Which part of a divided run this is; None = the journal holds the whole run."""
    reading: ReadingValue | None = None
    """None = an earlier version began the run."""
    inputs: InputsValue | None = None
    """None = an earlier version began the run, or this is a shard of one: the whole run has them."""
    mac: str = ""
    """Shows which user began the run (`ownership`); empty = nobody can tell."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.created):
            raise StoreError(f"a header's creation time is a number of seconds, got {self.created!r}")


class OpenedRecord(JournalValue, frozen=True, tag="opened", tag_field="record"):
    """A tree began: its problem without the secret, and its opening context."""

    tree: int
    """Index of the problem in its source."""
    uid: str
    seed: int
    codec_sha256: str
    question: str
    public: dict[str, Any]
    prompt: tuple[SegmentValue, ...]
    split: str = ""


class AskedRecord(JournalValue, frozen=True, tag="asked", tag_field="record"):
    """The strategy asked for commands. The first has this id; the others follow in order."""

    tree: int
    first_id: int
    commands: tuple[CommandValue, ...]
    allotments: tuple[Counters | None, ...] = ()
    """What each command may spend, if the driver fixed it at ask. The store does not interpret it."""


class GrownRecord(JournalValue, frozen=True, tag="grown", tag_field="record"):
    """A command completed a step."""

    tree: int
    command_id: int
    number: int
    """Number of the step within its command, from 0."""
    step: StepValue
    asides: tuple[StepValue, ...] = ()
    """What the environment's model said in the step: in the same record, so a crash keeps both or neither."""


class OutcomeRecord(JournalValue, frozen=True, tag="outcome", tag_field="record"):
    """A command was delivered: what it grew was put on the tree, and the strategy was told its outcome. These records
    are in order of delivery."""

    tree: int
    command_id: int
    ending: EndingValue
    num_steps: int
    """Number of steps that the command had grown; a replay compares it with its own."""
    spent: Spent = {}


class ClosedRecord(JournalValue, frozen=True, tag="closed", tag_field="record"):
    """A tree is finished. No record of it follows."""

    tree: int
    reason: str
    """`"done"`, a stop word, or the text of the error that ended it."""
    num_leaves: int
    spent: Spent = {}
    candidates: tuple[CandidateValue, ...] = ()
    """Of a search: the answers it found."""


class Handed(JournalValue, frozen=True, tag="handed", tag_field="record"):
    """A batch was handed to the trainer. The service no longer owns its trees."""

    rollout_id: int
    trees: tuple[int, ...]
    version: int
    """Version of the weights at that time."""
    first_sample: int
    """Number of the batch's first sample among all samples handed over."""
    num_samples: int


class Dropped(JournalValue, frozen=True, tag="dropped", tag_field="record"):
    """A tree will not be in any batch."""

    tree: int
    reason: str


class Updated(JournalValue, frozen=True, tag="updated", tag_field="record"):
    """Weights were loaded. Everything sampled after this carries their version."""

    version: int
    source: str = ""


class Marked(JournalValue, frozen=True, tag="marked", tag_field="record"):
    """The trainer saved its state. The service can be brought back to this point."""

    rollout_id: int
    source: dict[str, Any] = {}
    """State of the source of samples, for rollout functions. The store does not interpret it."""


class Accepted(JournalValue, frozen=True, tag="accepted", tag_field="record"):
    """The run went on with other inputs than before. Every tree that is not closed here grew with both."""

    what: tuple[str, ...]
    """`data`, `weights`, `plugins`."""
    inputs: InputsValue
    """What they are from here on."""


class Sealed(JournalValue, frozen=True, tag="sealed", tag_field="record"):
    """Last record of a file that will not be written again."""

    num_records: int
    """Records of this file, including its header but not this record."""
    crc: int
    """CRC-32 of the file's bytes before this record."""


TreeRecord = OpenedRecord | AskedRecord | GrownRecord | OutcomeRecord | ClosedRecord
ServiceRecord = Handed | Dropped | Updated | Marked
RunRecord = TreeRecord | ServiceRecord | Accepted
FileRecord = Header | Sealed
"""The first and the last line of a file."""
Record = FileRecord | RunRecord

Shut = ClosedRecord
"""The old name of `ClosedRecord`, kept for one version."""
