"""What can be looked at in an estimate, as data: nothing here knows how it is drawn.

Views are computed when they are asked for; an estimate is none the slower for them.
"""
