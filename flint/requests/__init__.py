"""What users ask for, each option declared once: `CaptureRequest` and `EstimateRequest`.

The fields make the options of the commands, the keys of flint.toml, the keywords of `flint.trace`
and `Trace.estimate`, and what `flint explore` sweeps. Nothing here imports more than the standard library.
"""
