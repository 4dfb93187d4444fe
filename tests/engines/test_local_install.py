import sys

import pytest

from ramify import plugins
from ramify.core.errors import ConfigError
from ramify.engines.builtin import FOLDER


def test_without_torch_the_error_is_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch):
    for module in ("torch", "transformers"):
        monkeypatch.setitem(sys.modules, module, None)
    for module in ("model_folder", "transformers_model"):
        monkeypatch.delitem(sys.modules, f"ramify.engines.{module}", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'ramify\[hf\]'"):
        plugins.build("engine", "local", model=str(FOLDER))
