"""Ask an OpenAI-compatible endpoint to make a number from others, four times, with a calculator.

python examples/endpoint.py http://127.0.0.1:8000/v1 MODEL "make 24 from 4 6 1"     (a key is read from OPENAI_API_KEY)
"""

import sys

from ramify import rollout_sync

base_url, model, question = sys.argv[1:]
result = rollout_sync(
    [question],
    engine__name="openai",
    engine__model=model,
    engine__base_url=base_url,
    strategy__options={"n": 4},
    growth__max_response_tokens=1024,
)
(tree,) = result.trees
for leaf in tree.leaves():
    print(f"reward {tree.reward(leaf)}, ended by {tree.stop(leaf)}")
    for message in tree.branch(leaf).messages[1:]:
        print(f"  {message['role']}: {str(message['content']).strip()}")
