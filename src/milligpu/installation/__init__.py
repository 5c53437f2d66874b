"""The chart without Helm, removing milligpu from a cluster, and what somebody needs who helps with one.

`chart` prints the Helm chart's objects: `template` and `template_functions` read its templates, `values` merges and
checks values. `node_object` says what milligpu left on a Node object, without I/O. `node_files` removes the files
on a node, and `uninstall` does the rest in the cluster. `support_bundle` reads a cluster, and `redact` leaves out
what is nobody's business. `migrate` plans the move from another system, without I/O.
"""
