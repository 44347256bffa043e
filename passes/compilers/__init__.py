"""Whole compilers in the place of a partitioner: what XLA makes for a chip, without the chip.

`compiled` hands a captured program to the compiler and reads what it gives: the scheduled module of
one device, whose kernels, layouts, loops and start/done pairs are the compiler's own.
"""
