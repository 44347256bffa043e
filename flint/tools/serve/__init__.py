"""Serving: what requests of users would see of a model behind an engine: TTFT, TPOT, goodput.

    requests -> router -> engines (rules of vLLM, SGLang, TensorRT-LLM) -> times of requests -> summary

What a pass of an engine takes comes from outside (`EngineTimes`); nothing here prices anything.
"""
