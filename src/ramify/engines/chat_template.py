"""ChatTemplate: the Jinja chat template of a model's folder, rendered as transformers does. Needs jinja2, an extra.

It uses the same environment (sandboxed, `trim_blocks`, `lstrip_blocks`, loop controls, JSON without escapes, `{%
generation %}`), the same files in the same order of precedence, and the same special tokens as variables (transformers
`utils/chat_template_utils.py`). One difference is deliberate: there is no clock. `strftime_now` exists only if a date
is given. A template has a budget (`template_budget.py`). Any error in a template or its files becomes a `ConfigError`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ramify.core.errors import ConfigError, nearest
from ramify.edge.error_text import error_text

if TYPE_CHECKING:
    from ramify.engines.template_budget import TemplateMeter

CONFIG: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
MORE_TEMPLATES: Final = "additional_chat_templates"
TOKEN_FILES: Final = ("special_tokens_map.json", CONFIG)
"""Files that name special tokens; a later file overrides an earlier one."""
OLDEST_JINJA: Final = [3, 1, 6]
"""Older versions have known sandbox escapes, and a template is untrusted code (transformers requires the same
version)."""


class ChatTemplate:
    """Renders one template. It can use `variables` beside the messages; `date` is today, as `2025-07-26`."""

    def __init__(
        self,
        source: str,
        *,
        name: str = "template",
        variables: Mapping[str, Any] | None = None,
        date: str | None = None,
    ) -> None:
        jinja2 = _jinja2()
        from ramify.engines.template_budget import MAX_SOURCE

        if len(source) > MAX_SOURCE:
            raise ConfigError(
                f"{name} is no chat template: it has {len(source):,} characters, more than {MAX_SOURCE:,}"
            )
        self._name = name
        self._variables = dict(variables or {})
        self._environment: Any = _environment(jinja2, _today(date))
        try:
            self._template: Any = self._environment.from_string(source)
        except jinja2.TemplateError as error:
            line = f" line {error.lineno}:" if isinstance(error, jinja2.TemplateSyntaxError) else ""
            raise ConfigError(f"{name} is no chat template:{line} {error}") from error
        except Exception as error:  # boundary: Jinja and Python raise much else for what is nested too deep
            raise ConfigError(f"{name} is no chat template: {error_text(error)}") from error

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], has_header: bool
    ) -> str:
        """The conversation as text; `has_header` adds the header of the next turn. Raises `ConfigError`."""
        from ramify.engines.template_budget import OverBudget

        plain = json.loads(json.dumps({"messages": list(messages), "tools": list(tools) or None}))
        self._environment.meter.reset()
        try:
            return self._template.render(**{**self._variables, **plain, "add_generation_prompt": has_header})
        except OverBudget as error:
            raise ConfigError(f"{self._name} is over its budget: {error}") from error
        except Exception as error:  # boundary: a template is foreign code
            hint = "; give it a date: format_options.date" if "strftime_now" in str(error) else ""
            raise ConfigError(f"{self._name} raises {type(error).__name__}: {error}{hint}") from error

    @property
    def spent(self) -> "TemplateMeter":
        """What the last rendering spent."""
        return self._environment.meter


def load_template(
    source: Path,
    *,
    tokens: Path | None = None,
    name: str | None = None,
    has_tools: bool = False,
    variables: Mapping[str, Any] | None = None,
    date: str | None = None,
) -> ChatTemplate:
    """The template of a model's folder, or of one Jinja file.

    `tokens` is the folder whose special tokens the template may use; None = its own. If there are several templates,
    the one called `name` is used. Without `name` it is `tool_use` if there are tools and such a template, or else
    `default`. Raises `ConfigError`.
    """
    folder = source if source.is_dir() else source.parent
    named = _folder_templates(source) if source.is_dir() else {"default": _text(source)}
    wanted = name or ("tool_use" if has_tools and "tool_use" in named else "default")
    if wanted not in named:
        raise ConfigError(f"{source} has no chat template called {wanted!r}; {nearest(wanted, named)}")
    cited = {**special_tokens(tokens or folder), **(variables or {})}
    return ChatTemplate(named[wanted], name=f"the chat template of {source}", variables=cited, date=date)


def special_tokens(folder: Path) -> dict[str, str]:
    """`bos_token`, `eos_token` and every other `…_token` in a tokenizer's files."""
    found: dict[str, str] = {}
    for file in TOKEN_FILES:
        for key, value in (_json(folder / file) if (folder / file).is_file() else {}).items():
            spelt = value.get("content") if isinstance(value, dict) else value
            if key.endswith("_token") and isinstance(spelt, str):
                found[key] = spelt
    return found


def _folder_templates(folder: Path) -> dict[str, str]:
    """Name -> source. Template files override those in the tokenizer's configuration."""
    single = folder / TEMPLATE_FILE
    files = {"default": single} if single.is_file() else {}
    files |= {path.stem: path for path in sorted((folder / MORE_TEMPLATES).glob("*.jinja"))}
    if files:
        return {name: _text(path) for name, path in files.items()}
    if not (folder / CONFIG).is_file():
        raise ConfigError(
            f"{folder} has neither {TEMPLATE_FILE} nor {CONFIG}; name a chat template by format_options.template"
        )
    found = _json(folder / CONFIG).get("chat_template")
    match found:
        case str() if found:
            return {"default": found}
        case list() if found:
            return _named(found, folder / CONFIG)
        case _:
            raise ConfigError(
                f"{folder / CONFIG} has no chat_template: this is no chat model; name one by format_options.template"
            )


def _named(entries: list[Any], path: Path) -> dict[str, str]:
    try:
        return {entry["name"]: str(entry["template"]) for entry in entries}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"the chat templates in {path} are no list of names and templates") from error


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the chat template {path} cannot be read: {error}") from error


def _json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object, not {value!r:.40}")
    return value


def _today(date: str | None) -> Callable[[str], str] | None:
    """The function that templates call for the date; None = no date was given."""
    if date is None:
        return None
    try:
        return datetime.fromisoformat(date).strftime
    except ValueError as error:
        raise ConfigError(f"date = {date!r}: write it as 2025-07-26") from error


def _jinja2() -> Any:
    line = "pip install 'ramify[chat]'"
    try:
        import jinja2
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ConfigError(f"a chat template needs jinja2: {line}") from error
    found = version("jinja2")
    if [int(number) for number in re.findall(r"\d+", found)[:3]] < OLDEST_JINJA:
        raise ConfigError(f"a chat template needs jinja2 3.1.6 or later, and this is {found}: {line}")
    return jinja2


def _environment(jinja2: Any, strftime: Callable[[str], str] | None) -> Any:
    """The Jinja environment that chat templates expect."""
    from ramify.engines.template_budget import CountedEnvironment

    class Generation(jinja2.ext.Extension):
        """`{% generation %}` marks the model's text for trainers; here only its content is rendered."""

        tags = frozenset({"generation"})

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = CountedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = environment.counted("tojson", _tojson)
    environment.globals["raise_exception"] = raise_exception
    if strftime is not None:
        environment.globals["strftime_now"] = strftime
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON without HTML escapes; Jinja's own filter escapes HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
