"""Whose turn it is: the order of waiting pods, and which of them may start now. No I/O, no clock, no dice.

`order` says who comes next, by guarantees, weights and what each user had of late. `opening` finds where and when a
pod that does not fit now will fit. `admit` starts pods in that order, and others only where they do not delay the
first of their queue. `cluster_lines` does so from the
cluster state, for the scheduler service, and `standing` says where a pod stands. `milligpu simulate --queues` runs
the same rules on traces.
"""
