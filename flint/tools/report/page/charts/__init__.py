"""Pictures of views, as SVG that is as wide as the page; the timeline is a canvas."""
