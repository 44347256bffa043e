"""From measurements to constants: what `flint calibrate` and the scripts that fit presets share."""
