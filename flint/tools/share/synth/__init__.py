"""`flint synth` and `flint learn`: remembered programs at other sizes, with their bodies written anew."""
