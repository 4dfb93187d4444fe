"""Questions: ready-made problems, and branches on which a model has answered."""

from typing import Final

from ramify.core.branch import Branch, Piece
from ramify.core.codec import ByteCodec, Codec
from ramify.core.problem import Problem
from ramify.core.segment import Finish, Segment, Usage, token_array

BYTES: Final = ByteCodec(is_exact=True)


def problems(number: int) -> list[Problem]:
    """`p0`, `p1`, …, each asking to make its number from 1 and 2. The secret `answer` is that number as text."""
    return [Problem(f"p{i}", f"make {i} from 1 2", {"target": i}, {"answer": str(i)}) for i in range(number)]


def branch_of(response: str, *, prompt: str = "", codec: Codec = BYTES) -> Branch:
    """A branch on which a model said `response`, at node 1, after a context of `prompt`."""
    opening = Segment("prompt", token_array(codec.encode(prompt)))
    ids = token_array(codec.encode(response))
    said = Segment("sampled", ids, finish=Finish("end_of_sequence"), usage=Usage(1, len(ids)))
    return Branch(codec, 1, ((Piece(0, opening),) if prompt else ()) + (Piece(1, said),))
