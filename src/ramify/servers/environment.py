"""Environment: which of our environment variables a server gets.

A server gets what libraries and drivers need, chosen by names and name prefixes, and nothing else: not our Python path,
and not proxies, whose addresses may hold passwords. A variable whose name says it is a key is never passed on by
itself; a server gets a key only if `hand_on` names it.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Final

from ramify.core.errors import ConfigError

NAMES: Final = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TZ TMPDIR LD_LIBRARY_PATH LD_PRELOAD XDG_CACHE_HOME XDG_CONFIG_HOME "
    "XDG_DATA_HOME XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE CURL_CA_BUNDLE CC CXX".split()
)
BEGINNINGS: Final = tuple(
    "LC_ CUDA_ NVIDIA_ NCCL_ GLOO_ UCX_ OMP_ KMP_ MKL_ OPENBLAS_ TORCH_ TORCHINDUCTOR_ PYTORCH_ TRITON_ FLASHINFER_ "
    "HF_ TRANSFORMERS_ TOKENIZERS_ VLLM_ SGLANG_ SGL_ HIP_ ROCM_ ROCR_ HSA_".split()
)
KEY_WORDS: Final = frozenset(
    "KEY KEYS APIKEY TOKEN TOKENS SECRET SECRETS PASSWORD PASSWD CREDENTIAL CREDENTIALS".split()
)
OTHERS_OWN: Final = frozenset({"VLLM_PORT", "VLLM_HOST_IP"})
"""Not passed on: these are addresses, and ours may belong to another server of this machine."""


def is_key(name: str) -> bool:
    """Whether the name of a variable says it is a key: `HF_TOKEN` is one, `TOKENIZERS_PARALLELISM` is not."""
    return not KEY_WORDS.isdisjoint(name.upper().split("_"))


def inherited(ours: Mapping[str, str], *, also: Iterable[str] = ()) -> dict[str, str]:
    """The variables of `ours` that a server gets, and those named in `also`. Raises `ConfigError` if one of `also` is
    not set."""
    unset = sorted(set(also) - set(ours))
    if unset:
        raise ConfigError(f"environment: {', '.join(unset)} is named by hand_on and is not set")
    kept = {name: value for name, value in ours.items() if _is_wanted(name)}
    return kept | {name: ours[name] for name in also}


def beside(python: str, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` adapted to `python`: programs are searched first in its folder, modules are not searched in the
    working directory (a folder named `vllm` there would be taken for vLLM), and output is unbuffered."""
    path = os.pathsep.join(filter(None, [os.path.dirname(python), environment.get("PATH", os.defpath)]))  # noqa: PTH120
    return {**environment, "PATH": path, "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1", "PYTHONNOUSERSITE": "1"}


def _is_wanted(name: str) -> bool:
    return (name in NAMES or name.startswith(BEGINNINGS)) and not is_key(name) and name not in OTHERS_OWN
