"""The engine's half: DDTree (arXiv 2604.12989) on DFlash drafts, inside stock vLLM.

core/ holds the algorithm and its plain references, kernels/ the Triton kernels, engine/ the glue to vLLM's V2 runner.
Importing this package imports neither torch nor vLLM.
"""

__version__ = "0.1.0"
