"""An estimate as one HTML file: text, tables and SVG from Python, and a canvas for the timeline.

The file asks for nothing outside itself, and holds no dates, hosts or paths: equal estimates give
equal bytes.
"""
