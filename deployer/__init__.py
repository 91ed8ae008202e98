"""The laptop's half of ddtree-deploy: inventory, transports, facts, plans, steps. Imports neither torch nor vLLM."""

__version__ = "0.1.0"
