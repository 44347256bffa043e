"""How good generated workloads are, on families of models that the generator has not seen.

python -m benchmarks.sharing.evaluation CORPUS -o docs/synth-accuracy.md
"""
