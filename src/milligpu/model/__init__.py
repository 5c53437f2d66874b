"""The vocabulary: units, GPUs, requests, grants with reasons, errors. Standard library only, no I/O.

Values are frozen and count in integers: milli-GPU and MiB. `parse_*` functions read what people write and either
return a value or raise `BadRequest` with the field, the value and what is allowed.
"""
