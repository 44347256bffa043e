"""Many small programs of many kinds of models, drawn at random: what a generator of workloads is trained and judged on.

    python -m benchmarks.sharing.corpus /tmp/corpus --count 560 --seed 0

`families/` has the models, one file for a few kinds each; `plan.py` draws meshes and what is sharded over
them, `run.py` what a model asks for while it is traced, `training.py` the step around it.
"""
