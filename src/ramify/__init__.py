"""ramify: rollout trees for language-model agents, for training and for answering."""

__version__ = "0.1.0"
