"""Algorithms of collectives that somebody wrote, as MSCCL reads them: checked, priced and written for ASTRA-sim."""
