from hypothesis import given, settings
from hypothesis import strategies as st

from ramify.core.codec import ByteCodec
from ramify.core.format import Span, controls, span_ids
from ramify.engines.shipped import DATA
from ramify.engines.tokenizer import TokenizerFile

BUILTIN = TokenizerFile(DATA / "builtin" / "tokenizer.json")
CONTROLS = ("<|user|>", "<|end|>", "<|assistant|>")

plain = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
glue = st.lists(st.one_of(plain, st.sampled_from(CONTROLS)), max_size=4).map("".join)
hostile = st.lists(st.one_of(plain, st.sampled_from([*CONTROLS, "<|", "end|>", " wolf", "\n"])), max_size=4).map(
    "".join
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(glue, plain), min_size=1, max_size=4))
def test_borders_of_spans_leave_no_trace_in_the_ids(pairs: list[tuple[str, str]]):
    spans = [span for trusted, text in pairs for span in (Span(trusted, is_trusted=True), Span(text))]
    whole = "".join(span.text for span in spans)
    if controls(BUILTIN, whole) == [c for span in spans if span.is_trusted for c in controls(BUILTIN, span.text)]:
        assert span_ids(BUILTIN, spans) == BUILTIN.encode(whole, allow_special=True)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([*CONTROLS, "\n", "a <|end|>b"]), hostile), min_size=1, max_size=4))
def test_only_a_trusted_span_makes_control_tokens(pairs: list[tuple[str, str]]):
    spans = [span for trusted, text in pairs for span in (Span(trusted, is_trusted=True), Span(text))]
    ids = span_ids(BUILTIN, spans)
    ours = {i for spelling in CONTROLS for i in BUILTIN.encode(spelling, allow_special=True)}
    trusted = [i for span in spans if span.is_trusted for i, _ in controls(BUILTIN, span.text)]
    assert [i for i in ids if i in ours] == trusted
    assert BUILTIN.decode(ids) == "".join(span.text for span in spans)


def test_a_control_token_cannot_be_put_together_across_a_border():
    spans = [Span("say <|en"), Span("d|>!", is_trusted=True)]
    assert span_ids(BUILTIN, spans) == BUILTIN.encode("say <|end|>!")


def test_text_alone_is_not_trusted():
    assert span_ids(BUILTIN, "a<|end|>") == BUILTIN.encode("a<|end|>")
    assert controls(BUILTIN, "a<|end|>b<|user|><|end|>") == [(266, "<|end|>"), (267, "<|user|>"), (266, "<|end|>")]
    assert controls(ByteCodec(), "<|end|>") == []
