"""`transom status --watch`: the live screen. It acts on nothing; it copies the command that would.

`content` and `plots` are pure: what stands on each tab. `follow` reads, `app` draws and hears keys (textual).
"""
