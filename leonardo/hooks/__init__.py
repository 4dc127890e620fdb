"""What the patches in upstream's tree call: the whole surface, kept narrow.

Importing it is cheap: each function imports what it needs when it is called.
"""
