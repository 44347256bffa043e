"""The surface as tables of other simulators: Vidur, LLMServingSim, SGLang's simulator."""
