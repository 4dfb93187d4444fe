import pytest

from ramify.core.errors import ConfigError
from ramify.servers.environment import beside, inherited, is_key

OURS = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "LC_ALL": "C.UTF-8",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_PORT": "1234",
    "VLLM_API_KEY": "sk-1",
    "OPENAI_API_KEY": "sk-2",
    "HF_TOKEN": "hf-3",
    "HF_HOME": "/cache",
    "HTTPS_PROXY": "http://me:secret@proxy",
    "PYTHONPATH": "/ours",
    "SOMETHING": "else",
}


@pytest.mark.covers("S3.2")
def test_a_server_is_given_what_libraries_need_and_no_key():
    names = {
        "PATH",
        "HOME",
        "LC_ALL",
        "CUDA_VISIBLE_DEVICES",
        "TOKENIZERS_PARALLELISM",
        "VLLM_LOGGING_LEVEL",
        "HF_HOME",
    }
    assert inherited(OURS) == {name: OURS[name] for name in names}


def test_a_key_goes_along_when_it_is_named():
    assert inherited(OURS, also=["HF_TOKEN"])["HF_TOKEN"] == "hf-3"
    with pytest.raises(ConfigError, match="NOT_THERE is named by hand_on and is not set"):
        inherited(OURS, also=["NOT_THERE"])


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "DB_PASSWORD", "my_apikey"])
def test_keys_are_known_by_their_names(name: str):
    assert is_key(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "MONKEY", "KEYBOARD", "VLLM_CPU_KVCACHE_SPACE"])
def test_words_that_hold_such_a_word_are_no_keys(name: str):
    assert not is_key(name)


def test_an_interpreters_own_programs_come_first():
    environment = beside("/engine/bin/python", {"PATH": "/bin"})
    assert environment["PATH"] == "/engine/bin:/bin"
    assert environment["PYTHONSAFEPATH"] == "1"
