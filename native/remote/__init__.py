"""Both halves of the remote driver, written from the vendors' headers and two files of notes.

`ctypes_of` reads which types can travel, `plan` says how each parameter of a function does, `notes` checks that
every function of a header was looked at, and `emit` writes C.
"""
