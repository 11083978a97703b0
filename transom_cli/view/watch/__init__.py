"""`transom status --watch`: the live screen. It changes nothing; it copies the commands that would.

`panels` (pure) and `plots` make the content of each tab, `follow` reads the run, and `app` draws and handles keys.
"""
