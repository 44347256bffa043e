"""Stages and a schedule become one program per rank class: split, order, compose."""
