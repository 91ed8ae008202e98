"""A stand-in for Triton's CPU backend: it is listed, and compiles nothing.

vLLM 0.32.0's CPU build keeps Triton, and with it the V2 model runner, only if ``triton.backends`` lists a backend named
"cpu" (``vllm/triton_utils/importing.py``). PyPI's Triton has none. With this entry vLLM keeps Triton, and
``TRITON_INTERPRET=1`` makes Triton run every kernel in its interpreter, which asks no backend for anything.
"""
