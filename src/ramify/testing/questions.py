"""Questions: ready-made problems, and branches on which a model has answered."""

from typing import Final

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec, Codec
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Segment, ToolCall, Usage, token_array

BYTES: Final = ByteCodec(is_exact=True)


def problems(number: int) -> list[Problem]:
    """`p0`, `p1`, …, each asking to make its number from 1 and 2. The secret `answer` is that number as text."""
    return [Problem(f"p{i}", f"make {i} from 1 2", {"target": i}, {"answer": str(i)}) for i in range(number)]


def told_branch(prompt: str, told: str, response: str, *, codec: Codec = BYTES) -> Branch:
    """A branch on which a model, asked `prompt`, called the tool `look`, was told `told`, and then said `response`."""
    call = Segment("sampled", token_array(codec.encode("<look>it</look>")), finish=Finish("stop", "</look>"))
    result = Segment("given", token_array(codec.encode(told)), tool_call=ToolCall("look", "it", result=told))
    opening = Segment("prompt", token_array(codec.encode(prompt)))
    said = Segment("sampled", token_array(codec.encode(response)), finish=Finish("end_of_sequence"))
    return Branch(codec, 2, (Piece(0, opening), Piece(1, call), Piece(1, result), Piece(2, said)))


def branch_of(response: str, *, prompt: str = "", codec: Codec = BYTES) -> Branch:
    """A branch on which a model said `response`, at node 1, after a context of `prompt`."""
    opening = Segment("prompt", token_array(codec.encode(prompt)))
    ids = token_array(codec.encode(response))
    said = Segment("sampled", ids, finish=Finish("end_of_sequence"), usage=Usage(1, len(ids)))
    return Branch(codec, 1, ((Piece(0, opening),) if prompt else ()) + (Piece(1, said),))
